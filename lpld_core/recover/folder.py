"""The folder a recovery run fills: one directory per class, and recover.json that says what it is.

An image file appears with its final name only when it is whole. So a group is finished when all its
files are there, and no other bookkeeping is needed to resume or to share a run between processes. What is
on its way lies in the hidden directory `.unfinished`, one place for each group, and goes with the last one.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from lpld_core.recover.plan import Group
from lpld_core.recover.settings import ImageFiles
from lpld_core.unfinished import LOCK, SUFFIX, brief, workplace
from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.format.strict_json import from_json, to_json
from lpld_labels.io.locks import in_use
from lpld_labels.io.storage import refuse_links, write_atomically, write_errors

RECORD_FILE = "recover.json"
CONTACT_SHEET_FILE = "contact_sheet.png"
_SUFFIXES = {"jpeg": ".jpg", "png": ".png"}
_MAY_CHANGE = ("class_group", "created_by")
"""Parts of a record that decide no image: a run may be resumed with others."""
REAL_DIGEST = "real_images_digest"
_SAID_LATER = (REAL_DIGEST,)
"""Parts that decide images and older records lack: nobody knows them then, and nobody adds them."""


class RecoveredFolder:
    """Where a run's images go.

    class_names: directory of each class. They must be in sorted order, or whoever lists the folder
    later would number the classes differently.
    """

    def __init__(self, root: str | Path, *, class_names: Sequence[str], files: ImageFiles) -> None:
        self.root = Path(root)
        self.class_names = tuple(class_names)
        self.files = files
        self._unfinished = self.root / SUFFIX
        refuse_links([self._unfinished])
        if list(class_names) != sorted(set(class_names)):
            raise InvalidArgumentError("class names are not sorted and distinct", where=self.root)

    def path(self, label: int, number: int) -> Path:
        """Return the path of one image."""
        name = self.class_names[label]
        return self.root / name / f"{name}_{number:05d}{_SUFFIXES[self.files.format]}"

    def has(self, group: Group) -> bool:
        """Whether all images of a group are there."""
        return all(self.path(*member).exists() for member in group.members)

    def save(self, group: Group, pixels: Tensor) -> None:
        """Write the images of a group: uint8 [B, H, W, 3] in the order of its members."""
        with write_errors(self.root):
            for label in group.classes:
                (self.root / self.class_names[label]).mkdir(parents=True, exist_ok=True)
        for member, image in zip(group.members, pixels, strict=True):
            write_atomically(self.path(*member), _encoded(image, self.files), within=self.workplace(group))

    def workplace(self, group: Group) -> Path:
        """Return the directory for what is on its way of a group; see `workplace` of unfinished.py."""
        return self._unfinished / f"{group.index:05d}"

    def finish(self, sheet: bytes) -> Path:
        """Leave the contact sheet, a PNG file, and delete what runs with other groups have left."""
        path = self.root / CONTACT_SHEET_FILE
        with workplace(self._unfinished / "sheet", wait=True) as place:
            write_atomically(path, sheet, within=place)
        with write_errors(self.root):
            for path in sorted(self._unfinished.glob("*")) if self._unfinished.is_dir() else []:
                if not in_use(path / LOCK):
                    shutil.rmtree(path)
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
                found = from_json(path.read_bytes(), where=str(path))
                _require_same_run(found, record, path)
                record = {
                    name: said for name, said in record.items() if name in found or name not in _SAID_LATER
                }
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


def _encoded(pixels: Tensor, files: ImageFiles) -> bytes:
    """Return the file of one image uint8 [H, W, 3]."""
    stream = io.BytesIO()
    options = {"quality": files.quality} if files.format == "jpeg" else {}
    Image.fromarray(pixels.numpy()).save(stream, files.format, **options)
    return stream.getvalue()


def _require_same_run(found: Any, wanted: dict[str, Any], path: Path) -> None:
    """Compare two records field by field and name the first difference."""
    if not isinstance(found, dict):
        raise PoolConflictError("not the record of a recovery run", where=path)
    wanted = from_json(to_json(wanted), where=str(path))
    for name in sorted(found.keys() | wanted.keys()):
        unknown = name in _SAID_LATER and name not in found
        if name not in _MAY_CHANGE and not unknown and found.get(name) != wanted.get(name):
            raise PoolConflictError(
                f"images of a different run are here: '{name}' differs",
                where=path,
                expected=brief(repr(found.get(name))),
                got=brief(repr(wanted.get(name))),
                hint="repeat the settings of that run to resume it, choose another folder, or replace it "
                "(--overwrite)",
            )


def to_pixels(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return normalised images float [B, 3, H, W] as pixels: uint8 [B, H, W, 3] on the CPU."""
    scale, shift = (torch.tensor(v, dtype=torch.float64).view(1, 3, 1, 1) for v in (std, mean))
    pixels = (images.detach().cpu().double() * scale + shift) * 255
    return pixels.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
