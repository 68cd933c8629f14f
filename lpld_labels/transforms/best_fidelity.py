"""Which fidelity a byte budget is best spent on, from students whose accuracy is known.

In the same bytes, a lower fidelity keeps more views and less of each label. ``python -m benchmarks.accuracy
--scale tiny100`` trains students of both, and a test compares the table below with its results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WHERE_MEASURED = "100 classes of Tiny-ImageNet"


@dataclass(frozen=True, kw_only=True)
class MeasuredBudget:
    """The bytes of f16 labels pruned to a ratio, and the fidelity whose students were best in them."""

    ratio: float
    fidelity: float

    def __str__(self) -> str:
        return f"{self.fidelity:g} gave the best students in the bytes of f16 at {self.ratio:g}x"


MEASURED = (MeasuredBudget(ratio=40, fidelity=0.95), MeasuredBudget(ratio=160, fidelity=0.95))


def nearest_budget(ratio: float) -> MeasuredBudget:
    """Return the measured budget nearest to one that holds 1 / `ratio` of all labels in f16."""
    return min(MEASURED, key=lambda budget: abs(math.log(budget.ratio / max(ratio, 1.0))))
