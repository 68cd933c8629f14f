"""JSON as the format allows it: bounded, without repeated names, without numbers that are none.

Python's parser takes `NaN`, keeps the last of two equal names and recurses as deep as it is led. Files of
a pool may come from anywhere, so these are refused here, before and while parsing.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, cast, get_args, get_type_hints

import msgspec

from lpld_labels.errors import InvalidArgumentError, ManifestError
from lpld_labels.format.limits import MAX_INTEGER, MAX_JSON_BYTES, MAX_JSON_DEPTH

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
HexDigest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""64 lower-case hex digits: a SHA-256."""
IGNORABLE = "must_understand"
"""An unknown field is refused unless its value is an object with ``"must_understand": false``."""
_SHOWN = 200
_MESSAGE = re.compile(r"(?P<problem>.*?)( - at (`key` in )?`\$\.?(?P<field>[^`]*)`)?", re.DOTALL)
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


def convert(document: object, kind: type[T], *, where: str, prefix: str = "", all_known: bool = False) -> T:
    """Return a parsed JSON object as a dataclass.

    prefix: name of the field that holds the object, for errors.
    all_known: refuse unknown fields even if they are marked as ignorable.
    """
    path = f"{prefix}." if prefix else ""
    _require_fields(document, kind, where, path, all_known=all_known)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        found = _MESSAGE.fullmatch(str(error))
        field = (found["field"] if found else None) or ""
        problem = found["problem"] if found else str(error)
        expected = _choices(kind, field) or problem.removeprefix("Expected ").split(", got ")[0]
        raise field_error(
            path + field, expected.replace("`", ""), _value_at(document, field), where=where
        ) from None


def field_error(field: str, expected: object, got: object, *, where: object, hint: str = "") -> ManifestError:
    """Return the error for a field with a wrong value, which may be of any length."""
    text = repr(got)
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}... ({len(text)} characters)"
    name = field.strip(".") or "document"
    return ManifestError(f"field '{name}' is wrong", where=where, expected=expected, got=text, hint=hint)


def _require_fields(document: object, kind: type[Any], where: str, path: str, *, all_known: bool) -> None:
    if not isinstance(document, Mapping):
        raise field_error(path, "an object", document, where=where)
    known = _nested(cast("Hashable", kind))
    for name in known:
        if name not in document:
            raise ManifestError(f"field '{path}{name}' is missing", where=where)
    for name in sorted(document.keys() - known.keys()):
        value = document[name]
        if all_known or not isinstance(value, Mapping) or value.get(IGNORABLE) is not False:
            raise ManifestError(
                f"field '{path}{name}' is unknown",
                where=where,
                hint="upgrade lpld-labels if a newer version wrote this pool",
            )
    for name, inner in known.items():
        if inner is not None:
            for place, item in _objects(document[name], path + name):
                _require_fields(item, inner, where, f"{place}.", all_known=all_known)


def _objects(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield the objects of a field that holds one or a list of them; msgspec refuses anything else."""
    if isinstance(value, Mapping):
        yield path, value
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield f"{path}[{number}]", item


@dataclass(frozen=True)
class NoFields:
    """An empty object."""


@cache
def _nested(kind: Hashable) -> dict[str, type[Any] | None]:
    """Return each field of a dataclass with the dataclass its value or items have, if any."""
    record: Any = kind
    hints = get_type_hints(record)
    found: dict[str, type[Any] | None] = {}
    for field in fields(record):
        candidates: list[Any] = [hints[field.name], *get_args(hints[field.name])]
        inner: Any = next(filter(is_dataclass, candidates), None)
        found[field.name] = inner
    return found


def _value_at(document: object, field: str) -> object:
    """Return the value that an error is about: `field` is a path such as ``files[3].role``."""
    value: Any = document
    for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", field):
        try:
            value = value[int(number)] if number else value[name]
        except (KeyError, IndexError, TypeError):
            break
    return value


def _choices(kind: type[Any], field: str) -> str:
    """Return which words a field may have, or "" where it is no choice of words."""
    *outer, last = re.sub(r"\[[^]]*\]", "", field).split(".")
    for name in outer:
        kind = _nested(cast("Hashable", kind)).get(name) or kind
    hint = get_type_hints(kind).get(last)
    words = [word for part in (hint, *get_args(hint)) for word in get_args(part) if isinstance(word, str)]
    words = words or [word for word in get_args(hint) if isinstance(word, str)]
    return f"one of {', '.join(dict.fromkeys(words))}" if words else ""
