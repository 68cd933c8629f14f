"""Shares of a job that several processes or machines do: ``2/3`` is the second of three."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from lpld_labels.errors import InvalidArgumentError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Part:
    """Share `number` (from 1) of `of` equal shares."""

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise InvalidArgumentError(
                "part is out of range", expected="I/N with 1 <= I <= N", got=f"{self.number}/{self.of}"
            )

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return this share of a list: every `of`-th item. All shares together are the list."""
        return items[self.number - 1 :: self.of]

    def split(self, into: int) -> list[Part]:
        """Return `into` smaller shares that are together this one."""
        return [Part(number=self.number + k * self.of, of=self.of * into) for k in range(into)]
