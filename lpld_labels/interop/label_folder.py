"""The files of a label folder, listed by name without opening anything.

epoch_{e}/batch_{b}.tar     one file per batch, by epoch
batch_{n}.tar               one file per batch, numbered through
{class}/{image}.tar         one file per image; the classes may lie below train or NAME/train, as
                            FKD's program puts them into its save path
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.records import BatchKey
from lpld_labels.interop.layouts import Files

EPOCH_IDS = "sampler_indices_epoch.json"
BATCH_IDS = "sampler_indices_batch.json"

_EPOCH = re.compile(r"epoch_(0|[1-9]\d{0,8})")
_BATCH = re.compile(r"batch_(0|[1-9]\d{0,8})\.tar")
_IMAGE_SUFFIX = ".tar"
_ZIP = b"PK\x03\x04"
_FIRST_MEMBER = b"/data.pkl"
_FIRST_BYTES = 512
"""Enough for the zip's first header with the name of its first member."""


@dataclass(frozen=True, kw_only=True)
class LabelFolder:
    """A label folder of another program.

    by_epoch: batches below epoch folders. numbered: batches of a flat folder.
    by_image: (class folder, stem) -> file, only looked for where there are no batches.
    unknown: names at the top or among the batches that belong to no known layout.
    """

    root: Path
    by_epoch: dict[BatchKey, Path]
    numbered: dict[int, Path]
    by_image: dict[tuple[str, str], Path]
    unknown: tuple[str, ...]

    def files(self, kind: Files) -> list[Path]:
        """Return the label files of a kind of layout; first batches first: those are complete if any is."""
        if kind == "numbered":
            return list(self.numbered.values())
        if kind == "images":
            return list(self.by_image.values())
        return [self.by_epoch[key] for key in sorted(self.by_epoch, key=lambda key: (key.batch, key.epoch))]

    @property
    def has_epoch_ids(self) -> bool:
        """Whether there is a file of image ids by epoch."""
        return (self.root / EPOCH_IDS).is_file()


def is_label_file(path: Path) -> bool:
    """Whether a file is what torch.save writes, by its name and its first bytes."""
    if path.suffix != _IMAGE_SUFFIX or path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as stream:
        start = stream.read(_FIRST_BYTES)
    return start.startswith(_ZIP) and _FIRST_MEMBER in start


def list_label_folder(root: Path) -> LabelFolder:
    """List a folder, names sorted by their numbers."""
    by_epoch: dict[BatchKey, Path] = {}
    numbered: dict[int, Path] = {}
    unknown = []
    for name in _names(root):
        path = root / name
        epoch, batch = _EPOCH.fullmatch(name), _BATCH.fullmatch(name)
        if epoch and path.is_dir():
            found, others = _batches(path)
            by_epoch |= {BatchKey(int(epoch[1]), number): file for number, file in found.items()}
            unknown += [f"{name}/{other}" for other in others]
        elif batch:
            numbered[int(batch[1])] = path
        elif name not in (EPOCH_IDS, BATCH_IDS):
            unknown.append(name)
    by_image = {} if by_epoch or numbered else _image_files(root)
    return LabelFolder(
        root=root,
        by_epoch=dict(sorted(by_epoch.items())),
        numbered=dict(sorted(numbered.items())),
        by_image=by_image,
        unknown=() if by_image else tuple(unknown),
    )


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
    except FileNotFoundError:
        raise LabelSourceError("label folder does not exist", where=folder) from None
    except OSError as error:
        raise LabelSourceError(f"cannot list label folder: {error.strerror}", where=folder) from None


def _batches(folder: Path) -> tuple[dict[int, Path], list[str]]:
    found: dict[int, Path] = {}
    others = []
    for name in _names(folder):
        batch = _BATCH.fullmatch(name)
        if batch:
            found[int(batch[1])] = folder / name
        else:
            others.append(name)
    return found, others


def _image_files(root: Path) -> dict[tuple[str, str], Path]:
    """Return the per-image files of class folders, which may lie below ``train`` or ``NAME/train``."""
    base = _classes_folder(root)
    found = {}
    for class_name in _names(base):
        folder = base / class_name
        if folder.is_dir():
            for name in _names(folder):
                if name.endswith(_IMAGE_SUFFIX):
                    found[class_name, name.removesuffix(_IMAGE_SUFFIX)] = folder / name
    return found


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
