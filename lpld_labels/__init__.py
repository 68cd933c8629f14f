"""Soft labels for dataset distillation in Parquet: the format of pools, and tools to write and read them.

>>> import lpld_labels as lpld
>>> lpld.prune("pool", "small", ratio=40)  # help(lpld.prune); the other commands are functions, too
>>> with lpld.PoolReader("small") as pool:
...     batch = pool.read(pool.keys[0])  # the first label batch
>>> batch.labels, batch.crops  # float16 [B, C], int32 [B, 4]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpld_core.image_verbs import recover, squeeze
    from lpld_core.settings import Part
    from lpld_core.verbs import build, doctor, train, verify
    from lpld_labels.errors import LabelPoolError
    from lpld_labels.format.images import ImageTable
    from lpld_labels.format.manifest import Augmentation, PoolHeader, Teacher
    from lpld_labels.format.records import BatchKey, Box, CutOut, LabelBatch, Mix, ViewBatch
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.pool.writer import PoolWriter
    from lpld_labels.verbs import copy, encode, export, import_labels, plan, prune, report, summary
    from lpld_labels.version import __version__

# Loaded on first use: NumPy and pyarrow take longer to import than most commands take to run.
_LAZY = {
    "lpld_core.image_verbs": ("recover", "squeeze"),
    "lpld_core.settings": ("Part",),
    "lpld_core.verbs": ("build", "doctor", "train", "verify"),
    "lpld_labels.errors": ("LabelPoolError",),
    "lpld_labels.format.images": ("ImageTable",),
    "lpld_labels.format.manifest": ("Augmentation", "PoolHeader", "Teacher"),
    "lpld_labels.format.records": ("BatchKey", "Box", "CutOut", "LabelBatch", "Mix", "ViewBatch"),
    "lpld_labels.pool.reader": ("PoolReader",),
    "lpld_labels.pool.writer": ("PoolWriter",),
    "lpld_labels.verbs": ("copy", "encode", "export", "import_labels", "plan", "prune", "report", "summary"),
    "lpld_labels.version": ("__version__",),
}

__all__ = [
    "Augmentation",
    "BatchKey",
    "Box",
    "CutOut",
    "ImageTable",
    "LabelBatch",
    "LabelPoolError",
    "Mix",
    "Part",
    "PoolHeader",
    "PoolReader",
    "PoolWriter",
    "Teacher",
    "ViewBatch",
    "__version__",
    "build",
    "copy",
    "doctor",
    "encode",
    "export",
    "import_labels",
    "plan",
    "prune",
    "recover",
    "report",
    "squeeze",
    "summary",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'lpld_labels' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
