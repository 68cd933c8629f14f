"""A teacher as a person asks for it, before anything is loaded. Nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_WEIGHTS = "DEFAULT"
"""The weights its makers publish."""
RANDOM_WEIGHTS = "random"
"""Fresh weights, the same every time: for timing and tests."""


@dataclass(frozen=True, kw_only=True)
class TeacherChoice:
    """What to load; None where the weights say it themselves. See `load_teacher`."""

    name: str
    weights: str = DEFAULT_WEIGHTS
    input_size: tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
