"""Where a loader is in its endless stream of epochs, and what saved states mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader.sampling import Sampling
from lpld_labels.loader.share import Share, share_of, share_rows

STATE_VERSION = 1


class Position(NamedTuple):
    """What is next: each process has delivered `done` units (see `Share`) of `epoch`."""

    epoch: int
    done: int


class Cursor:
    """The position of a loader and whether the next iteration begins there.

    An iteration begins where the cursor was put, by `place` or by the end of an epoch. If the one
    before was left in the middle, it begins with the next epoch: `break` ends an epoch.
    """

    def __init__(self) -> None:
        self.at = Position(0, 0)
        self._waiting = True

    def begin(self) -> Position:
        """Start an iteration and return its position."""
        if not self._waiting:
            self.at = Position(self.at.epoch + 1, 0)
        self._waiting = False
        return self.at

    def advance(self, units: int) -> None:
        """Count units that were delivered."""
        self.at = Position(self.at.epoch, self.at.done + units)

    def end_epoch(self) -> None:
        """Move to the start of the next epoch."""
        self.place(Position(self.at.epoch + 1, 0))

    def place(self, position: Position) -> None:
        """Let the next iteration begin at a position."""
        self.at = position
        self._waiting = True

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration begin with an epoch; in the middle of it if that is where we wait."""
        if not (self._waiting and self.at.epoch == epoch):
            self.place(Position(epoch, 0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """What this process plays in every epoch: a pure function of the epoch.

    sizes: [N], units of each label batch of the pool. unit: their name, "rows" or "label batches".
    """

    sampling: Sampling
    sizes: npt.NDArray[np.integer]
    unit: str
    rank: int
    world: int

    def units(self, epoch: int) -> int:
        """Return how many units this process plays in an epoch."""
        return share_rows(self.sizes[self.sampling.places(epoch)], self.world)

    def share(self, position: Position) -> Share:
        """Return what is left of an epoch at a position."""
        places = self.sampling.places(position.epoch)
        sizes = self.sizes[places]
        return share_of(places, sizes, rank=self.rank, world=self.world, skip=position.done)

    def identity(self) -> dict[str, Any]:
        """Return what a saved position depends on, as JSON values."""
        return {
            "policy": self.sampling.policy,
            "seed": self.sampling.seed,
            "batches_per_epoch": self.sampling.batches_per_epoch,
            "world": self.world,
            "unit": self.unit,
        }


class Task(NamedTuple):
    """One label batch to prepare: its place in the pool's index, and where to put the pixels."""

    place: int
    slot: int


class TaskSampler(Sampler[Task]):
    """Tasks for the workers, epoch after epoch without end, from `start` on.

    Without end, because workers should prepare the next epoch while this one is used up.
    """

    def __init__(self, schedule: Schedule, cursor: Cursor, slots: int) -> None:
        self.start = Position(0, 0)
        self._schedule = schedule
        self._cursor = cursor
        self._slots = slots

    def __iter__(self) -> Iterator[Task]:
        number = 0
        position = self.start
        while True:
            for place in self._schedule.share(position).places.tolist():
                yield Task(place, number % self._slots)
                number += 1
            position = Position(position.epoch + 1, 0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; trainers look for this method on samplers."""
        self._cursor.set_epoch(epoch)


def parse_state(state: dict[str, Any], expected: dict[str, Any]) -> Position:
    """Return the position a state names; refuse states of another pool, policy or number of processes."""
    for field, value in expected.items():
        if state.get(field) != value:
            raise InvalidArgumentError(
                f"this state belongs to another run: field '{field}' differs",
                expected=value,
                got=state.get(field),
                hint="open the loader with the settings it was saved with",
            )
    return Position(int(state["epoch"]), int(state["done"]))
