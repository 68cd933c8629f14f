"""Typed access to the fields of a JSON object, with the rule for unknown fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .errors import need, refuse

T = TypeVar("T")
_HEX = frozenset("0123456789abcdef")


def is_hex_digest(value: object) -> bool:
    """Say whether a value is 64 lower-case hex digits."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= _HEX


class Fields:
    """One JSON object: every known field must be taken, every other one must be ignorable."""

    def __init__(self, value: object, file: str, where: str) -> None:
        """Wrap an object found at `where`."""
        self.file = file
        self.where = where
        if not isinstance(value, dict):
            refuse(file, where or "manifest", "not an object")
        self._values: dict[str, Any] = value
        self._taken: set[str] = set()

    def name(self, field: str) -> str:
        """Give the field's full name."""
        return f"{self.where}.{field}" if self.where else field

    def has(self, field: str) -> bool:
        """Say whether the field is there."""
        return field in self._values

    def take(self, field: str) -> Any:
        """Take a required field of any type."""
        if field not in self._values:
            refuse(self.file, self.name(field), "missing")
        self._taken.add(field)
        return self._values[field]

    def integer(self, field: str, low: int = 0, high: int = 2**63 - 1) -> int:
        """Take an integer within bounds; booleans and 1.0 are not integers."""
        value = self.take(field)
        if isinstance(value, bool) or not isinstance(value, int):
            refuse(self.file, self.name(field), "not an integer")
        need(low <= value <= high, self.file, self.name(field), f"not from {low} to {high}")
        return int(value)

    def string(self, field: str) -> str:
        """Take a string."""
        value = self.take(field)
        if not isinstance(value, str):
            refuse(self.file, self.name(field), "not a string")
        return value

    def choice(self, field: str, choices: tuple[str, ...]) -> str:
        """Take a string out of a few."""
        value = self.string(field)
        need(value in choices, self.file, self.name(field), f"not one of {', '.join(choices)}")
        return value

    def digest(self, field: str) -> str:
        """Take 64 lower-case hex digits."""
        value = self.take(field)
        need(is_hex_digest(value), self.file, self.name(field), "not 64 lower-case hex digits")
        return str(value)

    def number(self, field: str) -> float:
        """Take a number."""
        return self._as_number(self.take(field), field)

    def _as_number(self, value: object, field: str) -> float:
        """Convert a JSON number, not a boolean, to float64."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            refuse(self.file, self.name(field), "not a number")
        return float(value)

    def numbers(self, field: str, count: int) -> tuple[float, ...]:
        """Take a list of exactly `count` numbers."""
        values = self.items(field, count)
        need(len(values) == count, self.file, self.name(field), f"not {count} numbers")
        return tuple(self._as_number(value, field) for value in values)

    def items(self, field: str, most: int) -> list[Any]:
        """Take a list of at most `most` items."""
        value = self.take(field)
        if not isinstance(value, list):
            refuse(self.file, self.name(field), "not a list")
        need(len(value) <= most, self.file, self.name(field), f"more than {most} items")
        return value

    def child(self, field: str) -> Fields:
        """Take an object."""
        return Fields(self.take(field), self.file, self.name(field))

    def children(self, field: str, most: int = 10**6) -> list[Fields]:
        """Take a list of objects."""
        items = self.items(field, most)
        return [Fields(item, self.file, f"{self.name(field)}[{i}]") for i, item in enumerate(items)]

    def optional(self, field: str, read: Callable[[str], T]) -> T | None:
        """Take a field that may be null (but not absent)."""
        return None if self.take(field) is None else read(field)

    def finish(self, ignorable: bool = True) -> None:
        """Refuse fields nobody took, unless they say that they need not be understood."""
        for field, value in self._values.items():
            if field in self._taken:
                continue
            if ignorable and isinstance(value, dict) and value.get("must_understand") is False:
                continue
            refuse(self.file, self.name(field), "unknown field")
