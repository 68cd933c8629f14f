"""Seconds of processor time of a job, which may be interrupted and resumed."""

from __future__ import annotations

import time
from pathlib import Path

SECONDS_BETWEEN_NOTES = 5.0


class Stopwatch:
    """A progress callback that saves the processor time of this process in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before = read_seconds(path)
        self._start = time.process_time()
        self._saved = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Save the time every few seconds."""
        if time.monotonic() - self._saved > SECONDS_BETWEEN_NOTES:
            self._save()

    def stop(self) -> float:
        """Save and return the total seconds."""
        self._save()
        return self.seconds

    @property
    def seconds(self) -> float:
        """The total of all runs of the job."""
        return self._before + time.process_time() - self._start

    def _save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(f"{self.seconds:.1f}")
        self._saved = time.monotonic()


def read_seconds(path: Path) -> float:
    """Return the saved seconds; 0 if there are none."""
    return float(path.read_text() or 0) if path.exists() else 0.0
