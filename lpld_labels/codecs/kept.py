"""Which classes a stored label speaks of: all of them, or only those a codec kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs.base import Codec, Payload
from lpld_labels.codecs.topk import TopKCodec, tail_level
from lpld_labels.format.records import BoolArray, LabelArray


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptClasses:
    """What a batch of sparse labels holds.

    kept: bool [B, C], classes that have a value of their own, k to a row. tail: whether all others have
    a level in common; without it nothing is said of them. dtype: of stored values.
    on_grid: whether values were rounded to a grid of their row (8 bits).
    """

    kept: BoolArray
    tail: bool
    dtype: np.dtype[Any]
    on_grid: bool


def kept_classes(codec: Codec, payload: Payload, *, rows: int, classes: int) -> KeptClasses | None:
    """Return the classes a batch holds values of; None where it is all of them."""
    if not isinstance(codec, TopKCodec):
        return None
    sparse = codec.sparse(payload, rows=rows, classes=classes)
    kept = np.zeros((rows, classes), np.bool_)
    np.put_along_axis(kept, sparse.indices, True, axis=1)
    return KeptClasses(
        kept=kept, tail=sparse.tail is not None, dtype=codec.value_dtype, on_grid=codec.value_bits == 8
    )


def levels_of_missing(labels: LabelArray, kept: BoolArray, label_kind: str) -> npt.NDArray[np.float32]:
    """Return the level [B] that classes not kept have in common; 0 where all are kept."""
    if kept.all():
        return np.zeros(len(labels), np.float32)
    return tail_level(labels, kept, label_kind)
