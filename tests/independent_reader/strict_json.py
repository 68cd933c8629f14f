"""JSON with the limits of the manifest: size, depth, no field twice, only numbers that float64 can hold."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from .errors import Refused, refuse

MAX_BYTES = 16 * 2**20
MAX_DEPTH = 32
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)  # a string without an end is one too


def _check_depth(text: str, file: str) -> None:
    """Refuse deep nesting before a recursive parser sees the text."""
    depth = 0
    for match in _TOKENS.finditer(text):
        first = text[match.start()]
        if first in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                refuse(file, "manifest", f"nested deeper than {MAX_DEPTH}")
        elif first in "]}":
            depth -= 1


def _check_strings(value: Any, file: str) -> None:
    """Refuse lone surrogates in any string or name."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            left += [*item, *item.values()]
        elif isinstance(item, list):
            left += item
        elif isinstance(item, str):
            try:
                item.encode("utf-8")
            except UnicodeEncodeError as error:
                raise Refused(file, "manifest", "a string holds a lone surrogate") from error


class _Hooks:
    """What the parser calls for objects and numbers."""

    def __init__(self, file: str) -> None:
        """Take the file's name for messages."""
        self.file = file

    def pairs(self, items: list[tuple[str, Any]]) -> dict[str, Any]:
        """Build an object; refuse a name that occurs twice."""
        out: dict[str, Any] = {}
        for name, value in items:
            if name in out:
                refuse(self.file, ascii(name), "named twice")
            out[name] = value
        return out

    def constant(self, name: str) -> Any:
        """Refuse NaN and the infinities."""
        refuse(self.file, "manifest", f"{name} is not JSON")

    def real(self, digits: str) -> float:
        """Parse a number with fraction or exponent; refuse what overflows float64."""
        value = float(digits)
        if not math.isfinite(value):
            refuse(self.file, "manifest", f"{digits[:40]} is more than float64 can hold")
        return value

    def integer(self, digits: str) -> int:
        """Parse an integer; refuse what overflows float64."""
        if len(digits) > 310 or not math.isfinite(float(digits)):
            refuse(self.file, "manifest", f"{digits[:40]}... is more than float64 can hold")
        return int(digits)


def parse(data: bytes, file: str) -> Any:
    """Parse one JSON text or refuse it."""
    if len(data) > MAX_BYTES:
        refuse(file, "manifest", f"more than {MAX_BYTES} bytes")
    if data.startswith(b"\xef\xbb\xbf"):
        refuse(file, "manifest", "begins with a byte order mark")
    try:
        text = data.decode("utf-8", errors="strict")
    except UnicodeDecodeError as error:
        raise Refused(file, "manifest", f"not UTF-8: {error}") from error
    _check_depth(text, file)
    hooks = _Hooks(file)
    try:
        value = json.loads(
            text, object_pairs_hook=hooks.pairs, parse_constant=hooks.constant, parse_float=hooks.real,
            parse_int=hooks.integer,
        )  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise Refused(file, "manifest", f"not JSON: {error}") from error
    _check_strings(value, file)
    return value
