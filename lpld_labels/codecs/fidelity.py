"""How much of the labels' information a codec keeps.

"Kept" at temperature T is 1 - sum KL(p || q) / sum KL(p || uniform), with p and q the softmax of the true and
the decoded logits over T. 1 means lossless, 0 as good as uniform labels, below 0 worse than uniform labels.
Sums run over rows, so confident rows weigh more. A decoded probability of 0 counts as the smallest float16
where the true probability is above 0; otherwise the divergence would be infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.codecs.base import Codec, Payload
from lpld_labels.codecs.floats import converted
from lpld_labels.codecs.label_semantics import SMALLEST, as_logits
from lpld_labels.format import arrow
from lpld_labels.format.records import LabelArray

TEMPERATURES = (1.0, 4.0, 20.0)
ROWS_AT_ONCE = 128  # Rows compared at once, to limit memory.
_ROUNDING = 1e-12  # Largest divergence per row that float64 rounding may cause.

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """kept: share of information kept, by temperature. top1: share of rows that keep their top class."""

    kept: dict[float, float]
    top1: float
    rows: int

    def as_json(self) -> dict[str, Any]:
        """Return the numbers, rounded to the precision that a few thousand rows allow."""
        return {
            "kept": {f"{temperature:g}": round(value, 5) for temperature, value in self.kept.items()},
            "top1": round(self.top1, 5),
            "rows": self.rows,
        }

    @staticmethod
    def from_json(document: Any) -> Fidelity:
        kept = {float(temperature): float(share) for temperature, share in document["kept"].items()}
        return Fidelity(kept=kept, top1=float(document["top1"]), rows=int(document["rows"]))


class FidelityMeter:
    """Adds up, over batches, the information that a codec loses."""

    def __init__(self, *, temperatures: Sequence[float] = TEMPERATURES, label_kind: str = "logits") -> None:
        self._label_kind = label_kind
        self._lost = {float(temperature): 0.0 for temperature in temperatures}
        self._known = dict(self._lost)
        self._agreeing = 0
        self._rows = 0

    def add(self, true: LabelArray, decoded: LabelArray) -> None:
        for start in range(0, len(true), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            expected, found = self._logits(true[part]), self._logits(decoded[part])
            found[np.isneginf(found) & np.isfinite(expected)] = np.log(SMALLEST)
            self._add(expected, found)

    def _logits(self, labels: LabelArray) -> Doubles:
        return as_logits(converted(labels, np.float32), self._label_kind).astype(np.float64)

    def _add(self, true: Doubles, decoded: Doubles) -> None:
        chosen = np.take_along_axis(true, decoded.argmax(axis=1)[:, None], axis=1)[:, 0]
        self._agreeing += int((chosen == true.max(axis=1)).sum())
        self._rows += len(true)
        for temperature in self._lost:
            scaled, other = true / temperature, decoded / temperature
            weights, total = _softmax(scaled)
            other_total = _softmax(other)[1]
            # A class of probability 0 adds nothing, although its logit is minus infinity.
            massive = weights > 0
            gap = np.subtract(scaled, other, out=np.zeros_like(scaled), where=massive)
            self._lost[temperature] += float(((weights * gap).sum(axis=1) - total + other_total).sum())
            level = np.where(massive, scaled, 0.0)
            self._known[temperature] += float(((weights * level).sum(axis=1) - total).sum())
            self._known[temperature] += len(true) * float(np.log(true.shape[1]))

    def result(self) -> Fidelity:
        """Return the fidelity over all rows so far; `kept` is 1 if there are no rows."""
        kept = {}
        for temperature, lost in self._lost.items():
            # Uniform labels have no information; a codec that keeps them uniform loses nothing.
            known = max(self._known[temperature], _ROUNDING * self._rows)
            kept[temperature] = 1.0 - lost / known if lost > _ROUNDING * self._rows else 1.0
        return Fidelity(kept=kept, top1=self._agreeing / max(self._rows, 1), rows=self._rows)


def _softmax(logits: Doubles) -> tuple[Doubles, Doubles]:
    """Return probabilities [B, C] and log-sum-exp [B]."""
    top = logits.max(axis=1, keepdims=True)
    weights = np.exp(logits - top)
    total = weights.sum(axis=1, keepdims=True)
    weights /= total
    return weights, (top + np.log(total))[:, 0]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Size and fidelity of encoded labels. payload_per_row: bytes, without codec tables and container."""

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
    """Measure a codec on labels, float16/float32 [B, C], encoded in batches of `batch_size` rows."""
    meter = FidelityMeter(temperatures=temperatures, label_kind=label_kind)
    used = rows = 0
    for batch in rebatched(blocks, batch_size):
        payload = codec.encode(batch).payload
        used += payload_bytes(payload)
        rows += len(batch)
        meter.add(batch, codec.decode(payload, rows=len(batch), classes=batch.shape[1]))
    return Trial(payload_per_row=used / max(rows, 1), fidelity=meter.result())


def rebatched(blocks: Sequence[LabelArray], batch_size: int) -> list[LabelArray]:
    """Split labels into full batches and drop the rest. If no batch is full, return one smaller batch."""
    labels = np.concatenate(list(blocks))
    size = min(batch_size, len(labels))
    return [labels[start : start + size] for start in range(0, len(labels) - size + 1, size)] if size else []


def payload_bytes(payload: Payload) -> int:
    """Return the size of a payload's values in bytes, excluding length prefixes of binary values."""
    lengths = [4 * len(array) for array in payload.values() if pa.types.is_binary(array.type)]
    return sum(map(arrow.value_bytes, payload.values())) - sum(lengths)
