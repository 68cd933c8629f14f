"""Taking JSON apart: every complaint names the file and the field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lpld_labels.errors import ManifestError
from lpld_labels.format.limits import MAX_INTEGER

T = TypeVar("T")
IGNORABLE = "must_understand"
"""An unknown field is refused unless its value is an object with ``"must_understand": false``."""
_SHOWN = 200
_DIGEST = re.compile(r"[0-9a-f]{64}")


class FieldReader:
    """Reads the fields of one JSON object by name and type, then refuses what is left over."""

    def __init__(self, document: object, *, where: str, prefix: str = "") -> None:
        self.where = where
        self.prefix = prefix
        if not isinstance(document, Mapping):
            raise self.error("", "an object", type(document).__name__)
        self._left: dict[str, Any] = dict(document)

    def error(self, name: str, expected: object, got: object, hint: str = "") -> ManifestError:
        field = f"{self.prefix}{name}".strip(".") or "document"
        return ManifestError(
            f"field '{field}' is wrong", where=self.where, expected=expected, got=got, hint=hint
        )

    def has(self, name: str) -> bool:
        """Whether there is such a field that nobody has read yet."""
        return name in self._left

    def _take(self, name: str) -> Any:
        if name not in self._left:
            raise self.error(name, "a value", "nothing")
        return self._left.pop(name)

    def integer(self, name: str, *, minimum: int = 0, maximum: int = MAX_INTEGER) -> int:
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            limits = f"an integer >= {minimum}" if maximum == MAX_INTEGER else f"{minimum} to {maximum}"
            raise self.error(name, limits, _shown(value))
        return value

    def integers(self, name: str, *, maximum: int = MAX_INTEGER) -> tuple[int, ...]:
        value = self._take(name)
        good = isinstance(value, list) and all(
            isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= maximum for item in value
        )
        if not good:
            raise self.error(name, f"a list of integers from 0 to {maximum}", _shown(value))
        return tuple(value)

    def number(self, name: str) -> float:
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(name, "a number", _shown(value))
        return float(value)

    def text(self, name: str, *, choices: tuple[str, ...] | None = None) -> str:
        value = self._take(name)
        if not isinstance(value, str) or (choices is not None and value not in choices):
            raise self.error(name, f"one of {', '.join(choices)}" if choices else "a string", _shown(value))
        return value

    def digest(self, name: str) -> str:
        """Read 64 lower-case hex digits."""
        value = self._take(name)
        if not isinstance(value, str) or _DIGEST.fullmatch(value) is None:
            raise self.error(name, "64 lower-case hex digits", _shown(value))
        return value

    def numbers(self, name: str, *, length: int | None = None) -> tuple[float, ...]:
        value = self._take(name)
        good = isinstance(value, list) and all(
            isinstance(item, (int, float)) and not isinstance(item, bool) for item in value
        )
        if not good or (length is not None and len(value) != length):
            raise self.error(name, f"a list of {length or 'any number of'} numbers", _shown(value))
        return tuple(float(item) for item in value)

    def strings(self, name: str) -> tuple[str, ...]:
        value = self._take(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, "a list of strings", _shown(value))
        return tuple(value)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._take(name)
        if not isinstance(value, dict):
            raise self.error(name, "an object", _shown(value))
        return value

    def optional(self, name: str, read: Callable[[str], T]) -> T | None:
        """Read a field that may be null (but not absent)."""
        if name in self._left and self._left[name] is None:
            del self._left[name]
            return None
        return read(name)

    def nested(self, name: str, parse: Callable[[FieldReader], T]) -> T:
        """Parse an object inside this one."""
        reader = FieldReader(self._take(name), where=self.where, prefix=f"{self.prefix}{name}.")
        value = parse(reader)
        reader.finish()
        return value

    def items(self, name: str, parse: Callable[[FieldReader], T]) -> tuple[T, ...]:
        """Parse a list of objects inside this one."""
        value = self._take(name)
        if not isinstance(value, list):
            raise self.error(name, "a list", _shown(value))
        parsed = []
        for number, item in enumerate(value):
            reader = FieldReader(item, where=self.where, prefix=f"{self.prefix}{name}[{number}].")
            parsed.append(parse(reader))
            reader.finish()
        return tuple(parsed)

    def finish(self, *, all_known: bool = False) -> None:
        """Refuse fields nobody asked for, unless they say they may be ignored and the place allows that."""
        for name, value in sorted(self._left.items()):
            if not all_known and isinstance(value, Mapping) and value.get(IGNORABLE) is False:
                continue
            raise self.error(
                name, "no such field", "one", "upgrade lpld-labels if a newer version wrote this pool"
            )


def _shown(value: object) -> str:
    """Return a value for a message; what comes from a file may be of any length."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"
