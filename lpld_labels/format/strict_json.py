"""JSON as the format allows it: bounded, without repeated names, without numbers that are none.

Python's parser takes `NaN`, keeps the last of two equal names and recurses as deep as it is led. Files of
a pool may come from anywhere, so these are refused here, before and while parsing.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from lpld_labels.errors import InvalidArgumentError, ManifestError
from lpld_labels.format.limits import MAX_JSON_BYTES, MAX_JSON_DEPTH

_HINT = "restore the file; the pool's data may be intact"


def to_json(document: dict[str, Any]) -> bytes:
    """Return stable, readable UTF-8 JSON; NaN, Inf and names that are no text are refused."""
    try:
        text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        return (text + "\n").encode("utf-8")
    except ValueError:
        for field, expected, value in _unwritable(document):
            raise InvalidArgumentError(
                f"field '{field}' cannot be written down", expected=expected, got=repr(value)
            ) from None
        raise


def from_json(data: bytes, *, where: str) -> Any:
    """Parse UTF-8 JSON; whatever the format does not allow becomes a ManifestError with its place."""
    if len(data) > MAX_JSON_BYTES:
        raise ManifestError(
            "JSON file is too large", where=where, expected=f"at most {MAX_JSON_BYTES} bytes", got=len(data)
        )
    try:
        text = data.decode("utf-8")
        document = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_integer,
        )
        if "\\ud" in text.lower():
            # Only escapes can bring half a character in; encoding what was read finds it.
            json.dumps(document, ensure_ascii=False).encode("utf-8")
        if not isinstance(document, (dict, list)) or not _too_deep(document):
            return document
    except RecursionError:
        pass
    except (UnicodeError, ValueError) as error:
        raise ManifestError(f"not valid JSON: {error}", where=where, hint=_HINT) from None
    raise ManifestError("JSON is nested too deep", where=where, expected=f"at most {MAX_JSON_DEPTH} levels")


def _unwritable(value: Any, field: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield (field, what it should be, value) of what JSON cannot hold."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _unwritable(name, field or "document")
            yield from _unwritable(inner, f"{field}.{name}" if field else str(name))
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _unwritable(inner, f"{field}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield field, "a finite number", value
    elif isinstance(value, str) and not is_text(value):
        yield field, "text", value


def is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8: file names and words of a command line need not be."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _too_deep(document: Any) -> bool:
    """Whether a parsed document nests deeper than allowed."""
    level = [document]
    for _ in range(MAX_JSON_DEPTH):
        inner: list[Any] = []
        for item in level:
            held = item.values() if isinstance(item, dict) else item
            inner.extend(value for value in held if isinstance(value, (dict, list)))
        if not inner:
            return False
        level = inner
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        # Counted once: asking for each of a million names how often it occurs would take hours.
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"field {twice!r} occurs twice")
    return document


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is out of range")
    return value


def _integer(text: str) -> int:
    if len(text) > 20:
        raise ValueError(f"{text[:40]}... is out of range")
    return int(text)
