"""Pools with pictures for page tests, and a strict look at HTML."""

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
from PIL import Image

from lpld_labels import ImageTable
from lpld_labels.render.images import scan_image_folder

HOSTILE = "<script>alert(1)</script>&\"'"
VOID = {"meta", "link", "img", "input", "br"}


def picture_folder(root: Path, names: Sequence[str], each: int = 3, size: int = 48) -> ImageTable:
    """Write smooth pictures, which JPEG keeps well, one directory per class; return their table."""
    down, across = np.mgrid[0:size, 0:size] / size
    for label, name in enumerate(sorted(names)):
        (root / name).mkdir(parents=True)
        for number in range(each):
            waves = [np.sin((1 + label) * down + number + c) + np.cos(2 * across * (c + 1)) for c in range(3)]
            pixels = (np.stack(waves, axis=2) * 60 + 128).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number:03d}.png")
    return scan_image_folder(root)


class StrictHtml(HTMLParser):
    """Collects elements and text, and notes tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def read_page(data: bytes) -> StrictHtml:
    assert len(data) <= 5_000_000
    page = StrictHtml()
    page.feed(data.decode("utf-8"))
    page.close()
    assert not page.wrong
    assert not page.open
    names = [name for name, _ in page.tags]
    assert names.count("script") == 1
    assert not {"iframe", "object", "embed", "form", "base"} & set(names)
    for name, attributes in page.tags:
        assert not [key for key in attributes if key.startswith("on") or key == "style"], name
        for key in ("href", "src", "action"):
            value = attributes.get(key) or "#"
            assert value.startswith(("#", "data:")), value
    return page
