"""The hook for cells whose temperature changes while a student trains, or is the student's own.

`TrainRecipe` gets the fields `temperature_schedule` and `student_temperature`; until it has them, such cells
are left out of every plan.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from benchmarks.accuracy.cells import Cell
from lpld_core.training.presets import TrainRecipe

FIELDS = ("temperature_schedule", "student_temperature")
VARIANTS: tuple[dict[str, str], ...] = (
    {"temperature_schedule": "cosine"},
    {"student_temperature": "calibrated"},
    {"temperature_schedule": "cosine", "student_temperature": "calibrated"},
)
"""What the cells of these temperatures set, spelled as the recipe spells it."""


def supported() -> bool:
    """Whether the training recipe knows these settings."""
    return {field.name for field in fields(TrainRecipe)} >= set(FIELDS)


def with_temperatures(recipe: TrainRecipe, cell: Cell) -> TrainRecipe:
    """Return the recipe with a cell's temperature settings; those it does not set stay as they are."""
    wishes: dict[str, Any] = {name: getattr(cell, name) for name in FIELDS}
    return replace(recipe, **{name: value for name, value in wishes.items() if value is not None})
