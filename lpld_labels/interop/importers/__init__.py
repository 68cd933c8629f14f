"""Importing label folders of other programs. Reads their files as data; needs no torch.

from lpld_labels.interop.importers import import_labels
report = import_labels("FKD_cutmix_fp16", "pool", images="syn_data")
"""

from __future__ import annotations

from lpld_labels.interop.importers.base import ImportOptions
from lpld_labels.interop.importers.formats import AUTO, FORMATS
from lpld_labels.interop.importers.report import Hole, ImportReport
from lpld_labels.interop.importers.run import detect_format, import_labels, require_importable

__all__ = [
    "AUTO",
    "FORMATS",
    "Hole",
    "ImportOptions",
    "ImportReport",
    "detect_format",
    "import_labels",
    "require_importable",
]
