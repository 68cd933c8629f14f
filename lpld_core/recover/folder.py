"""The folder of a recovery run: one directory per class, recover.json, and a contact sheet.

Image files are written atomically, so a group is finished when all its files exist. Partial work is in the
hidden directory `.unfinished`, which has a subdirectory for each group.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from lpld_core.images import evenly
from lpld_core.recover.settings import Group, ImageSettings
from lpld_core.unfinished import LOCK, SUFFIX, require_same_job, workplace
from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.format.strict_json import from_json, to_json
from lpld_labels.io.locks import in_use
from lpld_labels.io.storage import refuse_links, write_atomically, write_errors
from lpld_labels.render.decode import decode_image
from lpld_labels.render.images import read_file

RECORD_FILE = "recover.json"
CONTACT_SHEET_FILE = "contact_sheet.png"
_SUFFIXES = {"jpeg": ".jpg", "png": ".png"}
_RECORD_PLACE = "record"
_MAY_CHANGE = ("class_group", "created_by")
"""Fields of a record that do not affect images."""


class RecoveredFolder:
    """The images of a recovery run. class_names: names of the class directories; must be sorted."""

    def __init__(self, root: str | Path, class_names: Sequence[str], settings: ImageSettings) -> None:
        self.root = Path(root)
        self.class_names = tuple(class_names)
        self._format, self._quality = settings.format, settings.quality
        self._unfinished = self.root / SUFFIX
        self._record: dict[str, Any] = {}
        refuse_links([self._unfinished])
        if list(class_names) != sorted(set(class_names)):
            raise InvalidArgumentError("class names are not sorted and distinct", where=self.root)

    def path(self, label: int, number: int) -> Path:
        name = self.class_names[label]
        return self.root / name / f"{name}_{number:05d}{_SUFFIXES[self._format]}"

    def has(self, group: Group) -> bool:
        return all(self.path(*member).exists() for member in group.members)

    def save(self, group: Group, pixels: Tensor) -> None:
        """Write the images of a group. pixels: uint8 [B, H, W, 3], in the order of `group.members`."""
        self.require_own()
        with write_errors(self.root):
            for label in group.classes:
                (self.root / self.class_names[label]).mkdir(parents=True, exist_ok=True)
        options = {"quality": self._quality} if self._format == "jpeg" else {}
        for member, image in zip(group.members, pixels, strict=True):
            stream = io.BytesIO()
            Image.fromarray(image.numpy()).save(stream, self._format, **options)
            write_atomically(self.path(*member), stream.getvalue(), within=self.workplace(group))

    def workplace(self, group: Group) -> Path:
        return self._unfinished / f"{group.index:05d}"

    def finish(self, ipc: int) -> Path:
        """Write the contact sheet and return its path; delete unfinished work that other runs left."""
        path = self.root / CONTACT_SHEET_FILE
        images = evenly(ipc, 10)
        sheet = contact_sheet(
            [
                (self.class_names[label], [self.path(label, number) for number in images])
                for label in evenly(len(self.class_names), 10)
            ]
        )
        with workplace(self._unfinished / "sheet", wait=True) as place:
            write_atomically(path, sheet, within=place)
        with write_errors(self.root):
            for left in sorted(self._unfinished.glob("*")):
                with contextlib.suppress(PoolConflictError), workplace(left):
                    pass  # `workplace` deletes the directory, unless a process is using it.
            with contextlib.suppress(OSError):  # another running process will delete it
                self._unfinished.rmdir()
        return path

    def prepare(self, record: dict[str, Any], *, overwrite: bool = False) -> None:
        """Write recover.json; refuse a folder with other contents. overwrite: delete an old run's images."""
        self._is_another(record, overwrite=overwrite)  # Refuse before anything is created.
        with write_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        with workplace(self._unfinished / _RECORD_PLACE, wait=True) as place:
            # Check again under the lock: another run may have started in between.
            if self._is_another(record, overwrite=overwrite):
                self._clear(place)
            write_atomically(self.root / RECORD_FILE, to_json(record), within=place)
        self._record = record

    def require_own(self) -> None:
        """Raise PoolConflictError if another run has replaced recover.json."""
        _require_same_run(self.root / RECORD_FILE, self._record)

    def _is_another(self, record: dict[str, Any], *, overwrite: bool) -> bool:
        """Return True if a different run's images have to be deleted; refuse contents that must be kept."""
        path = self.root / RECORD_FILE
        if path.exists():
            try:
                _require_same_run(path, record)
            except PoolConflictError:
                if not overwrite:
                    raise
                return True
        elif self.root.exists() and any(entry.name != SUFFIX for entry in sorted(self.root.iterdir())):
            raise PoolConflictError(
                f"the folder is not empty and has no {RECORD_FILE}",
                where=self.root,
                hint="choose a new or empty folder: every directory here counts as a class",
            )
        return False

    def _clear(self, place: Path) -> None:
        """Delete a different run; refuse if it is active or other files exist. place: temporary directory."""
        ours = {RECORD_FILE, CONTACT_SHEET_FILE, SUFFIX}
        folders = [entry for entry in sorted(self.root.iterdir()) if entry.name not in ours]
        for folder in folders:
            for entry in folder.iterdir() if folder.is_dir() else [folder]:
                if not re.fullmatch(rf"{re.escape(entry.parent.name)}_\d{{5}}\.(jpg|png)", entry.name):
                    raise PoolConflictError(
                        "this is not an image of a recovery run, so the folder is not replaced",
                        where=entry,
                        hint="choose another path, or move this file away",
                    )
        work = [place for place in sorted(self._unfinished.iterdir()) if place.name != _RECORD_PLACE]
        for group in work:
            if in_use(group / LOCK):
                raise PoolConflictError(
                    "another process is using this directory",
                    where=group,
                    hint="wait for that process, or stop it",
                )
        with write_errors(self.root):
            # This record matches no run: it stops the other run, and any new run after an interruption.
            write_atomically(self.root / RECORD_FILE, to_json({"replaced": True}), within=place)
            for folder in (*folders, *work):
                shutil.rmtree(folder)
            (self.root / CONTACT_SHEET_FILE).unlink(missing_ok=True)


def _require_same_run(path: Path, record: dict[str, Any]) -> None:
    found = from_json(path.read_bytes(), where=str(path))
    if not isinstance(found, dict):
        raise PoolConflictError("not the record of a recovery run", where=path)
    wanted = from_json(to_json(record), where=str(path))
    compared = [{name: job[name] for name in job if name not in _MAY_CHANGE} for job in (found, wanted)]
    require_same_job(*compared, what="a different recovery run", where=path)


def to_pixels(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return normalised images float [B, 3, H, W] as pixels: uint8 [B, H, W, 3] on the CPU."""
    scale, shift = (torch.tensor(v, dtype=torch.float64).view(1, 3, 1, 1) for v in (std, mean))
    pixels = (images.detach().cpu().double() * scale + shift) * 255
    return pixels.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


_SCREEN = (1600, 1000)
_GAP, _LARGEST_TILE, _LETTER, _TITLE_LETTERS = 2, 130, 14, 24


def contact_sheet(rows: Sequence[tuple[str, Sequence[Path]]]) -> bytes:
    """Return a PNG that fits a screen. rows: the title and the image files of each row."""
    font = ImageFont.load_default(_LETTER)
    titles = [textwrap.shorten(title, _TITLE_LETTERS, placeholder="...") for title, _ in rows]
    margin = int(max(font.getlength(title) for title in titles)) + 2 * _GAP
    columns = max(len(paths) for _, paths in rows)
    cell = min(_LARGEST_TILE, (_SCREEN[0] - margin) // columns, _SCREEN[1] // len(rows))
    sheet = Image.new("RGB", (margin + cell * columns, cell * len(rows)), "white")
    pen = ImageDraw.Draw(sheet)
    for row, (title, (_, paths)) in enumerate(zip(titles, rows, strict=True)):
        pen.text((_GAP, row * cell + cell // 2), title, fill="black", font=font, anchor="lm")
        for column, path in enumerate(paths):
            image = Image.fromarray(decode_image(read_file(path), where=path))
            # Enlarge small images by an integer factor, so that they stay sharp.
            times = max(1, (cell - _GAP) // max(image.size))
            image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
            image.thumbnail((cell - _GAP, cell - _GAP))
            sheet.paste(image, (margin + column * cell, row * cell))
    stream = io.BytesIO()
    sheet.save(stream, "PNG", optimize=True)
    return stream.getvalue()
