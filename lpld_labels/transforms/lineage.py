"""Lineage: each step records the settings of its command as JSON, and settings come back out of it."""

from __future__ import annotations

import dataclasses
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec

from lpld_labels.errors import InvalidArgumentError, LabelPoolError
from lpld_labels.format.manifest import LineageStep
from lpld_labels.format.strict_json import from_json, to_json

SETTINGS = "settings"
"""The parameter of a step that holds the settings; others are results, such as `kept_batches`."""
Settings = TypeVar("Settings")


def settings_json(settings: Any) -> dict[str, Any]:
    """Return a settings dataclass as JSON values."""
    document = {field.name: _plain(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
    parsed: dict[str, Any] = from_json(to_json(document), where=type(settings).__name__)
    return parsed


def settings_from(kind: type[Settings], document: Any) -> Settings:
    """Return the settings that a step recorded; lineage comes from a file, so everything is checked."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        problem = str(cause) if isinstance(cause, LabelPoolError) else str(error)
        raise InvalidArgumentError(
            f"the lineage of the pool has settings that are not those of {kind.__name__}: {problem}"
        ) from None


def step(operation: str, parent_digest: str | None, settings: Any, **results: Any) -> LineageStep:
    """Return a step of lineage. settings: of the command, a dataclass. results: JSON values."""
    return LineageStep(
        operation=operation,
        parent_digest=parent_digest,
        parameters={SETTINGS: settings_json(settings), **results},
    )


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return settings_json(value)
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, PurePath) else value
