"""Seconds of processor time of a job, also of one that is stopped and taken up again."""

from __future__ import annotations

import time
from pathlib import Path

SECONDS_BETWEEN_NOTES = 5.0


class Stopwatch:
    """Counts what this process works, not what it waits for: a progress callback that keeps notes in a file.

    Jobs of the accuracy benchmark work in one process, so what others do at the same time does not count.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before = read_seconds(path)
        self._start = time.process_time()
        self._saved = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Write down, every now and then, how long it took so far."""
        if time.monotonic() - self._saved > SECONDS_BETWEEN_NOTES:
            self._save()

    def stop(self) -> float:
        """Write down and return the seconds in all."""
        self._save()
        return self.seconds

    @property
    def seconds(self) -> float:
        """Of all parts of the job so far."""
        return self._before + time.process_time() - self._start

    def _save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(f"{self.seconds:.1f}")
        self._saved = time.monotonic()


def read_seconds(path: Path) -> float:
    """Return what a stopwatch noted; 0 where there is nothing."""
    return float(path.read_text() or 0) if path.exists() else 0.0
