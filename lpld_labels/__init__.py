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
    from lpld_labels.format.manifest import Augmentation, LineageStep, Manifest, PoolHeader, Teacher
    from lpld_labels.format.records import BatchKey, Box, CutOut, LabelBatch, Mix, ViewBatch
    from lpld_labels.interop.exporting import export_pool
    from lpld_labels.interop.importing import import_labels
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.pool.writer import PoolWriter
    from lpld_labels.version import __version__

# Loaded on first use: NumPy and pyarrow take longer to import than most commands take to run.
_HOMES = {
    "Augmentation": "format.manifest",
    "BatchKey": "format.records",
    "Box": "format.records",
    "CutOut": "format.records",
    "ImageTable": "format.images",
    "LabelBatch": "format.records",
    "LabelPoolError": "errors",
    "LineageStep": "format.manifest",
    "Manifest": "format.manifest",
    "Mix": "format.records",
    "PoolHeader": "format.manifest",
    "PoolReader": "pool.reader",
    "PoolWriter": "pool.writer",
    "Teacher": "format.manifest",
    "ViewBatch": "format.records",
    "__version__": "version",
    "export_pool": "interop.exporting",
    "import_labels": "interop.importing",
}

__all__ = [
    "Augmentation",
    "BatchKey",
    "Box",
    "CutOut",
    "ImageTable",
    "LabelBatch",
    "LabelPoolError",
    "LineageStep",
    "Manifest",
    "Mix",
    "PoolHeader",
    "PoolReader",
    "PoolWriter",
    "Teacher",
    "ViewBatch",
    "__version__",
    "export_pool",
    "import_labels",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lpld_labels' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lpld_labels.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
