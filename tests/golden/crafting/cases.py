"""What a case is, and the list that all cases register themselves in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tests.golden.crafting.crafted import Crafted

Stage = Literal["open", "read", "verify"]
"""When a reader must refuse at the latest: opening the pool, using it (images, batches), or `verify`."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pool to refuse: made of golden pool `base` by `change`; `reason` is for people."""

    name: str
    base: str
    stage: Stage
    reason: str
    change: Callable[[Crafted], None]


CASES: list[Case] = []


def case(
    name: str, reason: str, *, base: str = "f16-plain", stage: Stage = "open"
) -> Callable[[Callable[[Crafted], None]], Callable[[Crafted], None]]:
    """Register the decorated function as a case."""

    def register(change: Callable[[Crafted], None]) -> Callable[[Crafted], None]:
        CASES.append(Case(name=name, base=base, stage=stage, reason=reason, change=change))
        return change

    return register
