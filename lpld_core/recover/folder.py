"""The folder a recovery run fills: one directory per class, recover.json, and a contact sheet.

An image file appears under its final name only when it is whole. So a group is finished when all its files
exist, and no other bookkeeping is needed to resume or to share a run between processes. Partial work lies
in the hidden directory `.unfinished`, one place for each group.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from lpld_core.recover.settings import Group, ImageFormat
from lpld_core.unfinished import LOCK, SUFFIX, require_same_job, workplace
from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.format.strict_json import from_json, to_json
from lpld_labels.io.locks import in_use
from lpld_labels.io.storage import refuse_links, write_atomically, write_errors
from lpld_labels.render.decode import decode_image
from lpld_labels.render.images import read_file

RECORD_FILE = "recover.json"
CONTACT_SHEET_FILE = "contact_sheet.png"
SHEET_CLASSES = SHEET_IMAGES = 10
_SUFFIXES = {"jpeg": ".jpg", "png": ".png"}
_MAY_CHANGE = ("class_group", "created_by")
"""Parts of a record that decide no image: a run may be resumed with others."""
REAL_DIGEST = "real_images_digest"


class RecoveredFolder:
    """Where a run's images go.

    class_names: directory of each class. They must be in sorted order, or whoever lists the folder
    later would number the classes differently.
    """

    def __init__(
        self, root: str | Path, *, class_names: Sequence[str], image_format: ImageFormat, quality: int
    ) -> None:
        self.root = Path(root)
        self.class_names = tuple(class_names)
        self._format, self._quality = image_format, quality
        self._unfinished = self.root / SUFFIX
        refuse_links([self._unfinished])
        if list(class_names) != sorted(set(class_names)):
            raise InvalidArgumentError("class names are not sorted and distinct", where=self.root)

    def path(self, label: int, number: int) -> Path:
        """Return the path of one image."""
        name = self.class_names[label]
        return self.root / name / f"{name}_{number:05d}{_SUFFIXES[self._format]}"

    def has(self, group: Group) -> bool:
        """Whether all images of a group are there."""
        return all(self.path(*member).exists() for member in group.members)

    def save(self, group: Group, pixels: Tensor) -> None:
        """Write the images of a group: uint8 [B, H, W, 3] in the order of its members."""
        with write_errors(self.root):
            for label in group.classes:
                (self.root / self.class_names[label]).mkdir(parents=True, exist_ok=True)
        options = {"quality": self._quality} if self._format == "jpeg" else {}
        for member, image in zip(group.members, pixels, strict=True):
            stream = io.BytesIO()
            Image.fromarray(image.numpy()).save(stream, self._format, **options)
            write_atomically(self.path(*member), stream.getvalue(), within=self.workplace(group))

    def workplace(self, group: Group) -> Path:
        """Return the directory for unfinished work on a group; see `workplace` of unfinished.py."""
        return self._unfinished / f"{group.index:05d}"

    def finish(self, ipc: int) -> Path:
        """Write the contact sheet, and delete what runs with other groups have left; return its path."""
        path = self.root / CONTACT_SHEET_FILE
        sheet = contact_sheet(
            self.path,
            classes=evenly(len(self.class_names), SHEET_CLASSES),
            images=evenly(ipc, SHEET_IMAGES),
            names=self.class_names,
        )
        with workplace(self._unfinished / "sheet", wait=True) as place:
            write_atomically(path, png_bytes(sheet), within=place)
        with write_errors(self.root):
            for left in sorted(self._unfinished.glob("*")) if self._unfinished.is_dir() else []:
                if not in_use(left / LOCK):
                    shutil.rmtree(left)
            with contextlib.suppress(OSError):  # another process is still at work, and will do it
                self._unfinished.rmdir()
        return path

    def prepare(self, record: dict[str, Any], *, overwrite: bool = False) -> None:
        """Leave the record in the folder; refuse a folder that holds anything but this run's images.

        overwrite: delete the images of another run that are there.
        """
        path = self.root / RECORD_FILE
        if path.exists():
            try:
                _require_same_run(path, record)
            except PoolConflictError:
                if not overwrite:
                    raise
                self._clear()
        elif self.root.exists() and any(entry.name != SUFFIX for entry in sorted(self.root.iterdir())):
            raise PoolConflictError(
                f"something is already here, and no {RECORD_FILE}",
                where=self.root,
                hint="choose a new or empty folder: every directory here counts as a class",
            )
        with write_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        with workplace(self._unfinished / "record", wait=True) as place:
            write_atomically(path, to_json(record), within=place)

    def _clear(self) -> None:
        """Delete what a run has left, its record last; refuse if anything else is there."""
        ours = {RECORD_FILE, CONTACT_SHEET_FILE, SUFFIX}
        folders = [entry for entry in sorted(self.root.iterdir()) if entry.name not in ours]
        for entry in (
            file for folder in folders for file in (folder.iterdir() if folder.is_dir() else [folder])
        ):
            if not re.fullmatch(rf"{re.escape(entry.parent.name)}_\d{{5}}\.(jpg|png)", entry.name):
                raise PoolConflictError(
                    "this is no image of a recovery run, so the folder is not replaced",
                    where=entry,
                    hint="choose another path, or move it away",
                )
        with write_errors(self.root):
            for folder in [*folders, self.root / SUFFIX]:
                shutil.rmtree(folder, ignore_errors=folder.name == SUFFIX)
            (self.root / CONTACT_SHEET_FILE).unlink(missing_ok=True)
            (self.root / RECORD_FILE).unlink()


def _require_same_run(path: Path, record: dict[str, Any]) -> None:
    """Refuse a recover.json with other settings than the record's; the error names the first."""
    found = from_json(path.read_bytes(), where=str(path))
    if not isinstance(found, dict):
        raise PoolConflictError("not the record of a recovery run", where=path)
    wanted = from_json(to_json(record), where=str(path))
    compared = [{name: said[name] for name in said if name not in _MAY_CHANGE} for said in (found, wanted)]
    require_same_job(*compared, what="another recovery run", where=path, otherwise="replace it (--overwrite)")


def to_pixels(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return normalised images float [B, 3, H, W] as pixels: uint8 [B, H, W, 3] on the CPU."""
    scale, shift = (torch.tensor(v, dtype=torch.float64).view(1, 3, 1, 1) for v in (std, mean))
    pixels = (images.detach().cpu().double() * scale + shift) * 255
    return pixels.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


_GAP = 2
_BACKGROUND = (255, 255, 255)
_SCREEN = (1600, 1000)
_LARGEST = 130
"""Pixels of a screen, and of an image with its gap at most."""
_LETTERS = 14
_TITLE = 24
"""Pixels of a letter, and letters of a class name at most."""


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` numbers below `count`, evenly spread, first and last included."""
    return sorted(set(np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()))


def contact_sheet(
    image_path: Callable[[int, int], Path],
    *,
    classes: Sequence[int],
    images: Sequence[int],
    names: Sequence[str],
) -> Image.Image:
    """Return the sheet: row r shows class classes[r] under its name, column k its image images[k].

    image_path: path of (class, number). names: of all classes. Images are enlarged or scaled down to what a
    screen has room for.
    """
    font = ImageFont.load_default(_LETTERS)
    titles = [textwrap.shorten(names[label], _TITLE, placeholder="...") for label in classes]
    margin = int(max(font.getlength(title) for title in titles)) + 2 * _GAP
    cell = min(
        _LARGEST,
        (_SCREEN[0] - margin - _GAP) // len(images),
        (_SCREEN[1] - _GAP) // len(classes),
    )
    sheet = Image.new("RGB", (margin + cell * len(images) + _GAP, cell * len(classes) + _GAP), _BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    for row, label in enumerate(classes):
        pen.text((_GAP, row * cell + cell // 2), titles[row], fill="black", font=font, anchor="lm")
        for column, number in enumerate(images):
            path = image_path(label, number)
            tile = _scaled(Image.fromarray(decode_image(read_file(path), where=path)), cell - _GAP)
            sheet.paste(tile, (margin + column * cell, row * cell + _GAP))
    return sheet


def _scaled(image: Image.Image, side: int) -> Image.Image:
    """Return an image whose longer side is about `side`; small ones grow by whole pixels and stay sharp."""
    longest = max(image.size)
    if longest <= side:
        times = side // longest
        return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    image.thumbnail((side, side))
    return image


def png_bytes(sheet: Image.Image) -> bytes:
    """Return a sheet as a PNG file."""
    stream = io.BytesIO()
    sheet.save(stream, "PNG", optimize=True)
    return stream.getvalue()
