"""LPLD's ImageNet-21K variant: cut-outs in place of flips, no mixing, no normalisation."""

from __future__ import annotations

from lpld_labels.interop.importers.lpld import Lpld


class Lpld21k(Lpld):
    """The list's second item is a box to paint, [B, 7]."""

    name = "lpld21k"
    summary = "LPLD for ImageNet-21K: cut-outs in place of flips"
    cut_out = True
