"""Parse untrusted JSON: limited size, finite numbers, no duplicate names, only declared fields.

Python's parser accepts `NaN`, keeps the last of duplicate names and recurses without a limit.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from lpld_labels.errors import InvalidArgumentError, ManifestError
from lpld_labels.format.limits import MAX_INTEGER, MAX_JSON_BYTES, MAX_JSON_DEPTH

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
HexDigest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]  # A SHA-256.
_IGNORABLE = "must_understand"
"""An unknown field is refused unless its value is an object with ``"must_understand": false``."""
_SHOWN = 200
_MESSAGE = re.compile(r"(?P<problem>.*?)( - at (`key` in )?`\$\.?(?P<field>[^`]*)`)?", re.DOTALL)


@dataclass(frozen=True)
class NoFields:
    """A JSON object without fields."""


def to_json(document: dict[str, Any]) -> bytes:
    """Return indented UTF-8 JSON with sorted keys; refuse NaN, Inf and text that UTF-8 cannot encode."""
    try:
        text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        return (text + "\n").encode("utf-8")
    except ValueError as error:
        _refuse_unwritable(document, "")
        raise InvalidArgumentError(f"cannot be written as JSON: {error}") from None


def _refuse_unwritable(value: object, field: str) -> None:
    expected = None
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _refuse_unwritable(name, field)
            _refuse_unwritable(inner, f"{field}.{name}" if field else name)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            _refuse_unwritable(inner, f"{field}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        expected = "a finite number"
    elif isinstance(value, str) and not is_text(value):
        expected = "text that UTF-8 can encode"
    if expected is not None:
        problem = f"field '{field}' cannot be written as JSON"
        raise InvalidArgumentError(problem, expected=expected, got=repr(value)[:_SHOWN])


def from_json(data: bytes, *, where: str) -> Any:
    """Parse UTF-8 JSON; raise ManifestError if it is invalid or exceeds a limit."""
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
            # Only escapes can produce a lone surrogate, which cannot be encoded.
            json.dumps(document, ensure_ascii=False).encode("utf-8")
        if not isinstance(document, (dict, list)) or not _too_deep(document):
            return document
    except RecursionError:
        pass
    except (UnicodeError, ValueError) as error:
        hint = "restore the file; the pool's data may be intact"
        raise ManifestError(f"not valid JSON: {error}", where=where, hint=hint) from None
    raise ManifestError("JSON is nested too deeply", where=where, expected=f"at most {MAX_JSON_DEPTH} levels")


def is_text(value: str) -> bool:
    """Return whether UTF-8 can encode a string. Some file names and arguments cannot be encoded."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _too_deep(document: Any) -> bool:
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
        # Count in a single pass, because hostile files may have a million names.
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"field {twice!r} occurs twice")
    return document


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is out of range")
    return value


def _integer(text: str) -> int:
    if len(text) > 20:
        raise ValueError(f"{text[:40]}... is out of range")
    return int(text)


def convert(document: object, kind: type[T], *, where: str, all_known: bool = False) -> T:
    """Convert JSON to `kind`; refuse wrong, missing or unknown fields. all_known: no field is ignorable."""
    if not isinstance(document, Mapping):
        raise field_error("", "an object", document, where=where)
    try:
        record = msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        found = _MESSAGE.fullmatch(str(error))
        field = (found["field"] if found else None) or "document"
        # Escape and shorten the message, because it may quote the untrusted file.
        problem = repr(found["problem"] if found else str(error))[1:-1][:_SHOWN].replace("`", "")
        raise ManifestError(f"field '{field}' is wrong: {problem}", where=where) from None
    _compare_fields(document, asdict(record), "", where, all_known=all_known)  # type: ignore[call-overload]
    return record


def _compare_fields(document: Any, record: Any, path: str, where: str, *, all_known: bool) -> None:
    """Refuse missing and unknown fields. all_known: refuse unknown fields even if they are ignorable."""
    if not isinstance(record, dict):
        for number, value in enumerate(record):
            if isinstance(value, (dict, list, tuple)):
                _compare_fields(document[number], value, f"{path}[{number}]", where, all_known=all_known)
        return
    prefix = f"{path}." if path else ""
    if record.keys() != document.keys():
        for name in sorted(record.keys() - document.keys()):
            raise ManifestError(f"field '{prefix}{name}' is missing", where=where)
        for name in sorted(document.keys() - record.keys()):
            value = document[name]
            if all_known or not isinstance(value, Mapping) or value.get(_IGNORABLE) is not False:
                hint = "upgrade lpld-labels if a newer version wrote this pool"
                raise ManifestError(f"field '{prefix}{name}' is unknown", where=where, hint=hint)
    for name, value in record.items():
        if isinstance(value, (dict, list, tuple)):
            _compare_fields(document[name], value, f"{prefix}{name}", where, all_known=all_known)


def field_error(field: str, expected: object, got: object, *, where: object) -> ManifestError:
    """Return the error for a field with a wrong value; long values are shortened."""
    text = repr(got)
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}... ({len(text)} characters)"
    name = field or "document"
    return ManifestError(f"field '{name}' is wrong", where=where, expected=expected, got=text)
