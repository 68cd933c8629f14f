"""Where a loader is in its endless stream of epochs, and what saved states mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader.processes import Processes
from lpld_labels.loader.sampling import Sampling
from lpld_labels.loader.share import Cut, EpochUnits, Position, Runs, Step

STATE_VERSION = 2


class Cursor:
    """The position of a loader and whether the next iteration begins there.

    An iteration begins where the cursor was put, by `place` or by the end of an epoch. If the one
    before was left in the middle, it begins with the next epoch: `break` ends an epoch.
    """

    def __init__(self) -> None:
        self.at = Position(0)
        self._waiting = True

    def begin(self) -> Position:
        """Start an iteration and return its position."""
        if not self._waiting:
            self.at = Position(self.at.epoch + 1)
        self._waiting = False
        return self.at

    def passed(self, step: Step) -> None:
        """Count a step that was delivered, unless somebody has put the cursor elsewhere meanwhile."""
        if not self._waiting:
            self.at = step.after
            self._waiting = step.is_last

    def place(self, position: Position) -> None:
        """Let the next iteration begin at a position."""
        self.at = position
        self._waiting = True

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration begin with an epoch; in the middle of it if that is where we wait."""
        if not (self._waiting and self.at.epoch == epoch):
            self.place(Position(epoch))


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """What is played in every epoch: a pure function of the epoch and the processes that share it.

    rows: [N], rows of each label batch of the pool. cut: how epochs are cut into steps, in units.
    whole_batches: whether a unit is a label batch; it is a row otherwise.
    """

    sampling: Sampling
    rows: npt.NDArray[np.integer]
    cut: Cut
    whole_batches: bool
    _epochs: dict[int, EpochUnits] = field(default_factory=dict, init=False, repr=False)

    def units(self, epoch: int) -> EpochUnits:
        """Return an epoch's units. The last few asked for are kept: many ask, and workers are ahead."""
        found = self._epochs.get(epoch)
        if found is None:
            places = self.sampling.places(epoch)
            sizes = np.ones(len(places), np.int64) if self.whole_batches else self.rows[places]
            found = EpochUnits(epoch=epoch, places=places, ends=np.cumsum(sizes, dtype=np.int64))
            for old in list(self._epochs)[:-2]:
                del self._epochs[old]
            self._epochs[epoch] = found
        return found

    def rows_of(self, epoch: int) -> int:
        """Return how many rows an epoch has for all processes together."""
        return int(self.rows[self.units(epoch).places].sum())

    def count(self, position: Position, processes: Processes) -> int:
        """Return how many steps are left of an epoch at a position."""
        return len(self.cut.shares(self.units(position.epoch).ends, position.done, processes).after)

    def position(self, epoch: int, steps: int, processes: Processes) -> Position:
        """Return where an epoch is after some of its steps."""
        before = Position(epoch)
        done = islice(self.steps(before, processes), steps)
        return max((step.after for step in done), default=before)

    def rows_of_steps(self, epoch: int, processes: Processes) -> list[int]:
        """Return the rows of each step of an epoch, of all processes together."""
        units = self.units(epoch)
        after = self.cut.shares(units.ends, 0, processes).after
        if self.whole_batches:
            after = np.cumsum(self.rows[units.places], dtype=np.int64)[after - 1]
        rows: list[int] = np.diff(after, prepend=0).tolist()
        return rows

    def steps(self, position: Position, processes: Processes) -> Iterator[Step]:
        """Yield the steps that are left of an epoch at a position."""
        return self.units(position.epoch).steps(position, self.cut, processes)

    def runs(self, position: Position, processes: Processes) -> Iterator[tuple[int, Runs]]:
        """Yield this process's label batches of what is left of an epoch, see `EpochUnits.runs`."""
        return self.units(position.epoch).runs(position, self.cut, processes)

    def identity(self) -> dict[str, Any]:
        """Return what a saved position depends on, as JSON values."""
        return {
            "policy": self.sampling.policy,
            "seed": self.sampling.seed,
            "batches_per_epoch": self.sampling.batches_per_epoch,
            "equal_epochs": self.sampling.chosen is not None,
            "unit": "label batches" if self.whole_batches else "rows",
        }


class Task(NamedTuple):
    """One label batch to prepare.

    place: where it is in the pool's index. buffer: number of the one for its pixels. runs: the rows to
    prepare, or None for all of them.
    """

    place: int
    buffer: int
    runs: Runs | None = None


def parse_state(state: dict[str, Any], expected: dict[str, Any]) -> Position:
    """Return the position a state names; refuse states of another pool, policy or seed."""
    for name, value in expected.items():
        if state.get(name) != value:
            raise InvalidArgumentError(
                f"this state belongs to another run: field '{name}' differs",
                expected=value,
                got=state.get(name),
                hint="open the loader with the settings it was saved with",
            )
    return Position(*(int(state[name]) for name in Position._fields))
