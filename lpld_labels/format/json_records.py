"""JSON objects as frozen dataclasses: every field present, of its type, and no others.

msgspec converts the values. Two rules are stricter than msgspec's own: a field with a default must still be
present (null is a value), and unknown fields are refused. Every error names the file and the field.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, cast, get_args, get_type_hints

import msgspec

from lpld_labels.errors import ManifestError
from lpld_labels.format.limits import MAX_INTEGER

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
HexDigest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""64 lower-case hex digits: a SHA-256."""
IGNORABLE = "must_understand"
"""An unknown field is refused unless its value is an object with ``"must_understand": false``."""
_SHOWN = 200
_MESSAGE = re.compile(r"(?P<problem>.*?)( - at (`key` in )?`\$\.?(?P<field>[^`]*)`)?", re.DOTALL)


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
