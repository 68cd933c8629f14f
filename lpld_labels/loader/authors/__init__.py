"""Pools for the training scripts of the methods' authors, which run on them with an unedited PyTorch.

In a script, only the lines that make its data loader are replaced. Which lines, and by what, stands at the
head of examples/sre2l_script.py, lpld_script.py, lpqld_script.py, gvbsm_script.py and fkd_script.py.
"""

from __future__ import annotations

from lpld_labels.loader.authors.fkd import FkdBatch, FkdLoader, fkd_loader
from lpld_labels.loader.authors.gvbsm import GvbsmBatch, GvbsmLoader, gvbsm_loader
from lpld_labels.loader.authors.lpld import LpldBatch, LpldLoader, lpld_loader
from lpld_labels.loader.authors.lpqld import LpqldBatch, LpqldLoader, lpqld_loader
from lpld_labels.loader.authors.script_loader import ScriptLoader
from lpld_labels.loader.authors.sre2l import Sre2lBatch, Sre2lLoader, sre2l_loader

__all__ = [
    "FkdBatch",
    "FkdLoader",
    "GvbsmBatch",
    "GvbsmLoader",
    "LpldBatch",
    "LpldLoader",
    "LpqldBatch",
    "LpqldLoader",
    "ScriptLoader",
    "Sre2lBatch",
    "Sre2lLoader",
    "fkd_loader",
    "gvbsm_loader",
    "lpld_loader",
    "lpqld_loader",
    "sre2l_loader",
]
