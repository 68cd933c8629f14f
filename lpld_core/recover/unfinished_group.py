"""The group in hand, kept on its way: a kill costs the last half minute, not the group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lpld_core.networks.weights import Tensors, read_weights, save_weights
from lpld_core.recover.plan import Group
from lpld_labels.pool.pace import Pace


class UnfinishedGroup:
    """A file with the images of one group after some iterations, and what the next one depends on.

    path: the file. The folder's record says what run it belongs to; a group of other images, which a run
    with another `class_group` left, is passed over.
    """

    def __init__(self, path: Path, group: Group) -> None:
        self._path = path
        self._units = [[list(unit.key), [list(member) for member in unit.members]] for unit in group.units]
        self._pace = Pace()

    def load(self) -> tuple[int, Tensors] | None:
        """Return the iterations done and the state of `GroupOptimiser`, or None."""
        if not self._path.exists():
            return None
        file = read_weights(self._path)
        if file.about.get("units") != self._units:
            return None
        return int(file.about["iterations"]), file.tensors

    def save_if_due(self, iterations: int, state: Callable[[], Tensors]) -> None:
        """Keep the state after so many iterations, if it is time to."""
        if self._pace.due():
            save_weights(self._path, state(), {"iterations": iterations, "units": self._units})
            self._pace.saved()
