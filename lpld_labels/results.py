"""Base classes of objects that notebooks show as tables: results of the verbs, and pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, ClassVar


class Shown:
    """Base of objects that notebooks show as a table. inspect/shown.py, a higher layer, draws the table."""

    def _repr_html_(self) -> str:
        from lpld_labels.inspect.shown import as_html

        return as_html(self)


class Result(Shown):
    """Base of the dataclasses that verbs return. Fields with repr=False are not shown and not in the JSON."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, as the command line prints them."""
        return {entry.name: _plain(getattr(self, entry.name)) for entry in fields(self) if entry.repr}

    def __repr__(self) -> str:
        from lpld_labels.inspect.shown import as_text

        return as_text(self)


def _plain(value: Any) -> Any:
    if hasattr(value, "as_json"):
        return value.as_json()
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
