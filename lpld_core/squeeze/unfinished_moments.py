"""Moments on their way: what a squeeze has gathered, saved now and then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lpld_core.networks.weights import Tensors, read_weights, save_weights
from lpld_core.squeeze.moments import ClassMoments
from lpld_core.squeeze.same_squeeze import require_same_squeeze
from lpld_labels.pool.pace import Pace


class UnfinishedMoments:
    """A file with the moments after some batches.

    job: what decides the statistics, as JSON values. batches: how many the moments have.
    """

    def __init__(self, path: Path, job: dict[str, Any]) -> None:
        self._path = path
        self._job = job
        self._pace = Pace()
        self._tensors: Tensors = {}
        self._reached: list[int] = []
        self.batches = 0
        if path.exists():
            file = read_weights(path)
            require_same_squeeze(file.about["job"], self._job, where=path.parent)
            self.batches, self._reached = int(file.about["batches"]), file.about["reached"]
            self._tensors = file.tensors

    def restore(self, moments: ClassMoments) -> set[int]:
        """Put what was gathered into new moments; return the numbers of the layers that ran."""
        if self._tensors:
            moments.load_state(self._tensors)
            self._tensors = {}
        return set(self._reached)

    def passed_batch(self, moments: ClassMoments, reached: set[int]) -> None:
        """Count a batch, and save if it is time to."""
        self.batches += 1
        if self._pace.due():
            about = {"job": self._job, "batches": self.batches, "reached": sorted(reached)}
            save_weights(self._path, moments.state(), about)
            self._pace.saved()
