"""What it takes to fit a codec to the labels of a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from lpld_labels.format.records import LabelArray

if TYPE_CHECKING:
    from lpld_labels.codecs.base import Codec
    from lpld_labels.codecs.request import CodecRequest

Arrays = Mapping[str, npt.NDArray[Any]]


class Keeper(Protocol):
    """Keeps what a long computation has come to, so that it can go on from there after an interruption."""

    def about(self, **facts: Any) -> Keeper:
        """Return the keeper of arrays that also depend on these settings, given as JSON values."""

    def get(self, name: str) -> Arrays | None:
        """Return what was put under a name with the same settings, or None."""

    def put(self, name: str, arrays: Arrays) -> None:
        """Keep arrays instead of those of that name.

        They may be written later: those that grow or change in place are to be put again at once.
        """


class KeepsNothing:
    """The keeper of work that may as well begin again."""

    def about(self, **facts: Any) -> Keeper:
        """Nothing depends on anything."""
        del facts
        return self

    def get(self, name: str) -> Arrays | None:
        """There is nothing."""
        del name
        return None

    def put(self, name: str, arrays: Arrays) -> None:
        """Let it go."""


NO_KEEPER = KeepsNothing()


@dataclass(frozen=True, kw_only=True, eq=False)
class FittingLabels:
    """Labels of a pool to fit to.

    fit, tune: blocks of float16/float32 [B, C]; tables come from `fit`, everything else is judged on `tune`.
    batch_size, label_kind: of the pool. keeper: of what fitting comes to on its way.
    """

    fit: Sequence[LabelArray]
    tune: Sequence[LabelArray]
    batch_size: int
    label_kind: str = "logits"
    keeper: Keeper = NO_KEEPER


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
