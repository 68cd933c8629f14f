"""Trying a codec on some labels: what they weigh and what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lpld_labels.codecs import Codec, Payload
from lpld_labels.codecs.fidelity import TEMPERATURES, Fidelity, FidelityMeter
from lpld_labels.format import arrow
from lpld_labels.format.records import LabelArray


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a codec made of some labels.

    payload_per_row: bytes of label payload per row, without the codec's tables and the container.
    """

    payload_per_row: float
    fidelity: Fidelity


def try_codec(
    codec: Codec,
    blocks: Sequence[LabelArray],
    *,
    batch_size: int,
    label_kind: str = "logits",
    temperatures: Sequence[float] = TEMPERATURES,
) -> Trial:
    """Encode and decode float16/float32 [B, C] labels in batches of the size they will have in the pool."""
    meter = FidelityMeter(temperatures=temperatures, label_kind=label_kind)
    used = rows = 0
    for batch in rebatched(blocks, batch_size):
        payload = codec.encode(batch).payload
        used += payload_bytes(payload)
        rows += len(batch)
        meter.add(batch, codec.decode(payload, rows=len(batch), classes=batch.shape[1]))
    return Trial(payload_per_row=used / max(rows, 1), fidelity=meter.result())


def rebatched(blocks: Sequence[LabelArray], batch_size: int) -> list[LabelArray]:
    """Cut labels into full batches; a rest is dropped unless there is nothing else."""
    labels = np.concatenate(list(blocks))
    size = min(batch_size, len(labels))
    return [labels[start : start + size] for start in range(0, len(labels) - size + 1, size)] if size else []


def payload_bytes(payload: Payload) -> int:
    """Return the bytes of the values in a payload."""
    return sum(map(_value_bytes, payload.values()))


def _value_bytes(array: arrow.Array) -> int:
    if pa.types.is_binary(array.type):
        lengths: Any = pc.binary_length(cast("Any", array))
        return int(pc.sum(lengths).as_py() or 0)
    if pa.types.is_list(array.type):
        return int(arrow.flattened(array).nbytes)
    return int(array.nbytes)
