"""What each process plays of an epoch, step by step.

An epoch is its label batches' rows laid end to end. With W processes and b rows per batch, step s of all
processes together is rows [s * b * W, (s + 1) * b * W), of which process r takes the r-th b rows: what
one process with batches of b * W rows would take in that step, in the same order. A last step of fewer
rows is shared out evenly too (unless drop_last leaves it out), so all processes make the same number of
steps; at most W - 1 rows at an epoch's end, too few to go round, are left out.

Where batches are whole label batches, units below are label batches and b is 1: step s of process r is
label batch s * W + r.

Views are mixed with partners of their own label batch. Where a label batch is shared by several
processes, each renders the rows it takes and their partners: up to twice its rows, none where b is a
multiple of the label batch's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader.processes import Processes

Integers = npt.NDArray[np.int64]
Runs = tuple[tuple[int, int], ...]
"""Units [start, stop) of one label batch, in order."""


class Position(NamedTuple):
    """What is next: all processes together have delivered `done` units of `epoch`, in `steps` steps."""

    epoch: int
    done: int = 0
    steps: int = 0


class Step(NamedTuple):
    """One batch of one of the processes: `units` of its units, between two positions of all of them."""

    before: Position
    units: int
    after: Position
    processes: Processes

    @property
    def epoch(self) -> int:
        return self.before.epoch

    @property
    def is_last(self) -> bool:
        return self.after.epoch != self.before.epoch


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How epochs are cut into steps: `batch` units per process and step."""

    batch: int
    drop_last: bool

    def counts(self, left: int, world: int) -> tuple[int, int]:
        """Return how many full steps `left` units make, and each process's units of a last, smaller one."""
        full, rest = divmod(left, self.batch * world)
        return full, 0 if self.drop_last else rest // world

    def steps(self, left: int, world: int) -> int:
        """Return the number of steps that `left` units make."""
        full, last = self.counts(left, world)
        return full + (last > 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochUnits:
    """An epoch's label batches and where they lie in it.

    places: int64 [n], where they are in the pool's index. ends: int64 [n], units up to and including each.
    """

    epoch: int
    places: Integers
    ends: Integers

    @property
    def total(self) -> int:
        return int(self.ends[-1])

    def left(self, position: Position, processes: Processes) -> int:
        """Return the units behind a position; refuse an epoch that cannot be shared out at all."""
        if self.total < processes.world:
            raise InvalidArgumentError(
                "an epoch has too few rows for so many processes",
                expected=f"at least {processes.world}",
                got=self.total,
                hint="raise batches_per_epoch",
            )
        return max(0, self.total - position.done)

    def steps(self, position: Position, cut: Cut, processes: Processes) -> Iterator[Step]:
        """Yield the steps of every process from a position on; all have the same number of the same size."""
        full, last = cut.counts(self.left(position, processes), processes.world)
        sizes = [cut.batch] * full + [last] * (last > 0)
        for ahead, units in zip(range(len(sizes))[::-1], sizes, strict=True):
            after = Position(self.epoch + 1)
            if ahead:
                done = position.done + units * processes.world
                after = Position(self.epoch, done, position.steps + 1)
            yield Step(position, units, after, processes)
            position = after

    def runs(self, position: Position, cut: Cut, processes: Processes) -> Iterator[tuple[int, Runs]]:
        """Yield this process's label batches from a position on: (place, the units it takes of it)."""
        starts, stops = self._ranges(position, cut, processes)
        if not len(starts):
            return
        begins = np.concatenate([[0], self.ends[:-1]])
        first = np.searchsorted(self.ends, starts, side="right")
        touched = np.searchsorted(self.ends, stops - 1, side="right") - first + 1
        # One entry per range and label batch it touches.
        within = np.arange(touched.sum()) - np.repeat(np.cumsum(touched) - touched, touched)
        batch = np.repeat(first, touched) + within
        run_starts = np.maximum(np.repeat(starts, touched), begins[batch]) - begins[batch]
        run_stops = np.minimum(np.repeat(stops, touched), self.ends[batch]) - begins[batch]
        runs = list(zip(run_starts.tolist(), run_stops.tolist(), strict=True))
        groups = np.flatnonzero(np.diff(batch, prepend=-1)).tolist()
        places = self.places[batch[groups]].tolist()
        for place, begin, end in zip(places, groups, [*groups[1:], len(runs)], strict=True):
            yield place, tuple(runs[begin:end])

    def _ranges(self, position: Position, cut: Cut, processes: Processes) -> tuple[Integers, Integers]:
        """Return this process's units of the epoch as ranges [starts, stops), one per step or fewer."""
        (rank, world), done = processes, position.done
        full, last = cut.counts(self.left(position, processes), world)
        if world == 1:
            stop = done + full * cut.batch + last
            return np.array([done][: stop > done], np.int64), np.array([stop][: stop > done], np.int64)
        rest = done + full * cut.batch * world
        starts = done + (np.arange(full) * world + rank) * cut.batch
        if not last:
            return starts, starts + cut.batch
        starts = np.append(starts, rest + rank * last)
        return starts, starts + np.append(np.full(full, cut.batch), last)
