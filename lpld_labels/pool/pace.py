"""How often unfinished work is made safe: one rule for every command."""

from __future__ import annotations

import time
from collections.abc import Callable

SAVE_SECONDS = 30.0
"""Between two saves: with the time that a save and a step take, a kill costs less than a minute of work."""


class Pace:
    """Says when it is time to save; starts when it is made. seconds: between saves, None for the rule."""

    def __init__(self, seconds: float | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last = clock()

    def due(self) -> bool:
        """Whether enough time has passed since the last save."""
        seconds = SAVE_SECONDS if self._seconds is None else self._seconds
        return self._clock() - self._last >= seconds

    def saved(self) -> None:
        """Count from now on."""
        self._last = self._clock()
