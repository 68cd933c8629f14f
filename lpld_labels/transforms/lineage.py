"""Lineage: each step records the settings of its command as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from lpld_labels.format.manifest import LineageStep

SETTINGS = "settings"
"""Name of the step parameter with the settings; the other parameters are results, such as `kept_batches`."""


def settings_json(settings: Any) -> dict[str, Any]:
    """Return a settings dataclass as JSON values."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings, enc_hook=str))
    return document


def step(operation: str, parent_digest: str | None, settings: Any, **results: Any) -> LineageStep:
    """Return a lineage step. settings: the command's dataclass. results: other parameters."""
    return LineageStep(
        operation=operation,
        parent_digest=parent_digest,
        parameters={SETTINGS: settings_json(settings), **results},
    )
