"""Lineage: each step records the settings of its command as JSON, and settings can be read back from it."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from lpld_labels.errors import InvalidArgumentError, LabelPoolError
from lpld_labels.format.manifest import LineageStep

SETTINGS = "settings"
"""The parameter of a step that holds the settings; others are results, such as `kept_batches`."""
Settings = TypeVar("Settings")


def settings_json(settings: Any) -> dict[str, Any]:
    """Return a settings dataclass as JSON values."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings, enc_hook=str))
    return document


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
