"""Cells whose temperature falls while a student trains, or whose student has one of its own (LPQLD)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.accuracy.cells import Cell
from lpld_core.train.settings import TrainSettings

FIELDS = ("temperature_schedule", "student_temperature")
VARIANTS: tuple[dict[str, str], ...] = (
    {"temperature_schedule": "step", "student_temperature": "calibrated"},
    {"temperature_schedule": "step"},
    {"student_temperature": "calibrated"},
)
"""What cells set, spelled as `TrainSettings` spells it: LPQLD's way, then each of its two parts alone."""


def with_temperatures(settings: TrainSettings, cell: Cell) -> TrainSettings:
    """Return the settings with a cell's temperatures; those it does not set stay as they are."""
    wishes: dict[str, Any] = {name: getattr(cell, name) for name in FIELDS}
    return replace(settings, **{name: value for name, value in wishes.items() if value is not None})
