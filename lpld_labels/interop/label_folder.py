"""The files of a label folder, listed by name without opening anything.

Batch files are named by `Layout.file`, at most one directory deep. Files by image are CLASS/IMAGE.tar, below
train or NAME/train if FKD's program wrote them there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.records import BatchKey
from lpld_labels.interop.layouts import ID_FILES, LAYOUTS, Layout

_IMAGE_SUFFIX = ".tar"
_ZIP = b"PK\x03\x04"
_FIRST_MEMBER = b"/data.pkl"
_FIRST_BYTES = 512
"""Enough for the zip's first header with the name of its first member."""


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>0|[1-9]\\d{0,8})", re.escape(template)))


_FILES = {layout.file: _pattern(layout.file) for layout in LAYOUTS.values() if layout.file}
_FOLDERS = [_pattern(file.rpartition("/")[0]) for file in _FILES if "/" in file]


@dataclass(frozen=True, kw_only=True)
class LabelFolder:
    """A label folder of another program.

    batches: `Layout.file` -> batch -> path; epoch 0 where batches are numbered through.
    by_image: (class folder, stem) -> path, only looked for where there are no batches.
    unknown: names at the top or among the batches that belong to no known layout.
    """

    root: Path
    batches: Mapping[str, Mapping[BatchKey, Path]]
    by_image: Mapping[tuple[str, str], Path]
    unknown: tuple[str, ...]

    def files(self, layout: Layout) -> list[Path]:
        """Return the label files of a layout; first batches first: those are complete if any is."""
        if not layout.file:
            return list(self.by_image.values())
        batches = self.batches[layout.file]
        return [batches[key] for key in sorted(batches, key=lambda key: (key.batch, key.epoch))]

    def has_ids(self, layout: Layout) -> bool:
        """Whether the file of image ids is there."""
        return (self.root / layout.ids_file).is_file()


def is_label_file(path: Path) -> bool:
    """Whether a file is what torch.save writes, by its name and its first bytes."""
    if path.suffix != _IMAGE_SUFFIX or path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as stream:
        start = stream.read(_FIRST_BYTES)
    return start.startswith(_ZIP) and _FIRST_MEMBER in start


def list_label_folder(root: Path) -> LabelFolder:
    """List a folder, batches sorted by their numbers."""
    names: list[str] = []
    for name in _names(root):
        in_layout = any(pattern.fullmatch(name) for pattern in _FOLDERS) and (root / name).is_dir()
        names += [f"{name}/{below}" for below in _names(root / name)] if in_layout else [name]
    batches: dict[str, dict[BatchKey, Path]] = {}
    for file, pattern in _FILES.items():
        found = [(match.groupdict(), name) for name in names if (match := pattern.fullmatch(name))]
        keys = {BatchKey(int(part.get("epoch", 0)), int(part["batch"])): name for part, name in found}
        batches[file] = {key: root / keys[key] for key in sorted(keys)}
    by_image = {} if any(batches.values()) else _image_files(root)
    known = {path for found in batches.values() for path in found.values()}
    unknown = [name for name in names if root / name not in known and name not in ID_FILES]
    return LabelFolder(
        root=root, batches=batches, by_image=by_image, unknown=() if by_image else tuple(unknown)
    )


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
    except FileNotFoundError:
        raise LabelSourceError("label folder does not exist", where=folder) from None
    except OSError as error:
        raise LabelSourceError(f"cannot list label folder: {error.strerror}", where=folder) from None


def _image_files(root: Path) -> dict[tuple[str, str], Path]:
    base = _classes_folder(root)
    return {
        (class_name, name.removesuffix(_IMAGE_SUFFIX)): base / class_name / name
        for class_name in _names(base)
        if (base / class_name).is_dir()
        for name in _names(base / class_name)
        if name.endswith(_IMAGE_SUFFIX)
    }


def _classes_folder(root: Path) -> Path:
    if (root / "train").is_dir():
        return root / "train"
    below = [root / name / "train" for name in _names(root) if (root / name / "train").is_dir()]
    if len(below) > 1:
        raise LabelSourceError(
            "labels of several data sets are here",
            where=root,
            got=", ".join(path.parent.name for path in below),
            hint="give one of these folders",
        )
    return below[0] if below else root
