"""Taking JSON apart: every complaint names the file and the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lpld_labels.errors import ManifestError

T = TypeVar("T")
IGNORABLE = "must_understand"
"""An unknown field is refused unless its value is an object with ``"must_understand": false``."""


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

    def _take(self, name: str) -> Any:
        if name not in self._left:
            raise self.error(name, "a value", "nothing")
        return self._left.pop(name)

    def integer(self, name: str, *, minimum: int = 0) -> int:
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(name, f"an integer >= {minimum}", repr(value))
        return value

    def number(self, name: str) -> float:
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(name, "a number", repr(value))
        return float(value)

    def text(self, name: str, *, choices: tuple[str, ...] | None = None) -> str:
        value = self._take(name)
        if not isinstance(value, str) or (choices is not None and value not in choices):
            raise self.error(name, f"one of {', '.join(choices)}" if choices else "a string", repr(value))
        return value

    def numbers(self, name: str, *, length: int | None = None) -> tuple[float, ...]:
        value = self._take(name)
        good = isinstance(value, list) and all(
            isinstance(item, (int, float)) and not isinstance(item, bool) for item in value
        )
        if not good or (length is not None and len(value) != length):
            raise self.error(name, f"a list of {length or 'any number of'} numbers", repr(value))
        return tuple(float(item) for item in value)

    def strings(self, name: str) -> tuple[str, ...]:
        value = self._take(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, "a list of strings", repr(value))
        return tuple(value)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._take(name)
        if not isinstance(value, dict):
            raise self.error(name, "an object", repr(value))
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
            raise self.error(name, "a list", repr(value))
        parsed = []
        for number, item in enumerate(value):
            reader = FieldReader(item, where=self.where, prefix=f"{self.prefix}{name}[{number}].")
            parsed.append(parse(reader))
            reader.finish()
        return tuple(parsed)

    def finish(self) -> None:
        """Refuse fields nobody asked for, unless they say they may be ignored."""
        for name, value in sorted(self._left.items()):
            if isinstance(value, Mapping) and value.get(IGNORABLE) is False:
                continue
            raise self.error(
                name, "no such field", "one", "upgrade lpld-labels if a newer version wrote this pool"
            )
