"""Soft labels for dataset distillation in Parquet: the pool format and everything that reads it.

>>> from lpld_labels import PoolReader
>>> with PoolReader("pool") as pool:
...     batch = pool.read((0, 3))  # epoch 0, batch 3
>>> batch.labels, batch.crops  # float16 [B, C], int32 [B, 4]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpld_labels.errors import LabelPoolError
    from lpld_labels.format.images import ImageTable
    from lpld_labels.format.manifest import Augmentation, PoolHeader, Teacher
    from lpld_labels.format.records import BatchKey, Box, CutOut, LabelBatch, Mix, ViewBatch
    from lpld_labels.inspect.check import check_pool
    from lpld_labels.interop.exporting import export_pool
    from lpld_labels.interop.importing import import_labels
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.pool.writer import PoolWriter
    from lpld_labels.transforms.copy import copy_pool
    from lpld_labels.transforms.encode import encode_pool
    from lpld_labels.transforms.prune import prune_pool
    from lpld_labels.transforms.settings import EncodeSettings, PruneSettings
    from lpld_labels.version import __version__

# Loaded on first use: NumPy and pyarrow take longer to import than most commands take to run.
_LAZY = {
    "errors": ("LabelPoolError",),
    "format.images": ("ImageTable",),
    "format.manifest": ("Augmentation", "PoolHeader", "Teacher"),
    "format.records": ("BatchKey", "Box", "CutOut", "LabelBatch", "Mix", "ViewBatch"),
    "inspect.check": ("check_pool",),
    "interop.exporting": ("export_pool",),
    "interop.importing": ("import_labels",),
    "pool.reader": ("PoolReader",),
    "pool.writer": ("PoolWriter",),
    "transforms.copy": ("copy_pool",),
    "transforms.encode": ("encode_pool",),
    "transforms.prune": ("prune_pool",),
    "transforms.settings": ("EncodeSettings", "PruneSettings"),
    "version": ("__version__",),
}

__all__ = [
    "Augmentation",
    "BatchKey",
    "Box",
    "CutOut",
    "EncodeSettings",
    "ImageTable",
    "LabelBatch",
    "LabelPoolError",
    "Mix",
    "PoolHeader",
    "PoolReader",
    "PoolWriter",
    "PruneSettings",
    "Teacher",
    "ViewBatch",
    "__version__",
    "check_pool",
    "copy_pool",
    "encode_pool",
    "export_pool",
    "import_labels",
    "prune_pool",
]


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(importlib.import_module(f"lpld_labels.{module}"), name)
    raise AttributeError(f"module 'lpld_labels' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
