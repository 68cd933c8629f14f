"""What it takes to fit a codec to the labels of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lpld_labels.format.records import LabelArray

if TYPE_CHECKING:
    from lpld_labels.codecs.base import Codec
    from lpld_labels.codecs.request import CodecRequest


@dataclass(frozen=True, kw_only=True, eq=False)
class FittingLabels:
    """Labels of a pool to fit to.

    fit, tune: blocks of float16/float32 [B, C]; tables come from `fit`, everything else is judged on `tune`.
    batch_size, label_kind: of the pool.
    """

    fit: Sequence[LabelArray]
    tune: Sequence[LabelArray]
    batch_size: int
    label_kind: str = "logits"


class Fitter(Protocol):
    """Makes codecs of one kind for one pool."""

    def for_rows(self, rows: int) -> Fitter:
        """Return the fitter of the same labels for a pool of another number of rows."""

    def fitted(self, request: CodecRequest) -> Codec:
        """Return the codec that meets a request for anything but a budget."""

    def within(self, bytes_per_row: float, request: CodecRequest) -> Codec:
        """Return the best codec for a request within so many bytes per row, tables included."""

    def smallest(self) -> Codec:
        """Return the codec that takes the fewest bytes."""

    def bytes_per_row(self, codec: Codec) -> float:
        """Return payload bytes per row, plus the tables' share."""
