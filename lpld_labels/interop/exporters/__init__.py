"""Exporting pools to the label folders that other programs read with plain `torch.load`.

from lpld_labels import PoolReader
from lpld_labels.interop.exporters import export_pool
export_pool(PoolReader("pool"), "FKD_cutmix_fp16", label_format="lpld")
"""

from __future__ import annotations

from lpld_labels.interop.exporters.base import ExportOptions
from lpld_labels.interop.exporters.run import EXPORT_FORMATS, ExportReport, export_pool

__all__ = ["EXPORT_FORMATS", "ExportOptions", "ExportReport", "export_pool"]
