"""Pools and results as tables, for notebooks and for repr()."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
from PIL import Image

from lpld_labels.errors import LabelPoolError, without_secrets
from lpld_labels.inspect.page import jpeg_uri, template_environment
from lpld_labels.inspect.summary import COMPONENT_NAMES, PoolSummary
from lpld_labels.inspect.text import human_bytes, shortened
from lpld_labels.pool.packing import packed_images
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.images import find_images
from lpld_labels.render.store import ImageStore
from lpld_labels.results import Result, Shown

_LISTED = 10  # List entries shown.
_VIEWS = 8
_STORE_BYTES = 64 * 1024 * 1024
_POOL_FACTS = ("labels", "codec", "epochs", "batches", "images", "views per image", "views", "teacher")


def as_text(result: Result) -> str:
    """Return a result as lines of text."""
    lines = [f"  {name}: {text}".replace("\n", "\n    ") for name, text in _rows(result)]
    return "\n".join([type(result).__name__, *lines])


def as_html(shown: Shown) -> str:
    """Return a pool or a result as an HTML fragment."""
    rows, views, manifest = _rows(shown), [], getattr(shown, "manifest", None)
    if isinstance(shown, PoolReader):
        rows = _rows(PoolSummary(location=shown.location, manifest=shown.manifest))
        try:
            views = _views(shown)
        except LabelPoolError as error:
            rows.append(("no pictures", str(error)))
    sizes = {} if manifest is None else PoolSummary(location="", manifest=manifest).components
    total = sum(sizes.values())
    page = template_environment().get_template("notebook.html")
    return page.render(
        title=type(shown).__name__,
        rows=rows,
        bars=[
            (COMPONENT_NAMES[name], human_bytes(size), 100 * size / total)
            for name, size in sizes.items()
            if size
        ],
        total=human_bytes(total),
        views=views,
    )


def _rows(shown: Shown) -> list[tuple[str, str]]:
    if isinstance(shown, PoolSummary):
        facts = shown.settings()
        return [("pool", shown.location), *((name, facts[name]) for name in _POOL_FACTS)]
    return list(fact_rows(shown.as_json())) if isinstance(shown, Result) else []


def fact_rows(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each fact of a result; facts without a value are left out."""
    for key, value in facts.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from fact_rows(value, f"{name} ")
        elif isinstance(value, list | tuple):
            if value:
                more = [f"and {len(value) - _LISTED} more (see --json)"] if len(value) > _LISTED else []
                yield name, without_secrets("\n".join([*map(_words, value[:_LISTED]), *more]))
        elif value is not None:
            is_size = isinstance(value, int) and "bytes" in name.split()
            yield name, without_secrets(human_bytes(value) if is_size else _words(value))


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ": ".join(map(_words, value.values()))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _views(pool: PoolReader) -> list[tuple[str, str]]:
    """Return (picture, image name) for a few views of the first batch; [] without images or torch."""
    folder = pool.image_folder
    source = packed_images(pool) if folder is None else find_images(pool, folder)
    if source is None or not len(pool) or find_spec("torch") is None:
        return []
    from lpld_labels.render.apply import apply_views, take_views

    batch, store = pool.views_at(0), ImageStore(source, memory_bytes=_STORE_BYTES)
    slots = np.arange(min(_VIEWS, batch.rows))
    pixels = apply_views(take_views(batch, slots), store, pool.header.augmentation)
    pictures = pixels[: len(slots)].round().byte().permute(0, 2, 3, 1).numpy()
    names = [shortened(pool.images.paths[image]) for image in batch.images[slots].tolist()]
    return [(jpeg_uri(Image.fromarray(one), 90), name) for one, name in zip(pictures, names, strict=True)]
