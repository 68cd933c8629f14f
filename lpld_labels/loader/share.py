"""What each process plays of an epoch, step by step.

An epoch is its label batches' rows laid end to end. With W processes and b rows per batch, step s of all
processes together is rows [s * b * W, (s + 1) * b * W), of which process r takes the r-th b rows: what
one process with batches of b * W rows would take in that step, in the same order. A last step of fewer
rows is shared out evenly too (unless drop_last leaves it out), so all processes make the same number of
steps; at most W - 1 rows at an epoch's end, too few to go round, are left out.

Where batches are whole label batches, units below are label batches and b is 1: step s of process r is
label batch s * W + r.

Where steps are global (`GlobalCut`), they are those of one process, whatever W: step s of n rows (b of them,
or a label batch) is shared out in W parts as equal as can be, some perhaps empty. No row is left out, and
what a step trains on does not depend on W at all.

Views are mixed with partners of their own label batch. Where a label batch is shared by several
processes, each renders the rows it takes and their partners: up to twice its rows, none where b is a
multiple of the label batch's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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


class Shares(NamedTuple):
    """One process's share of an epoch, step by step.

    starts, stops: int64 [n], its units of each step. after: int64 [n], units that all processes together
    have had after each step.
    """

    starts: Integers
    stops: Integers
    after: Integers


class Cut(Protocol):
    """How epochs are cut into steps and steps into shares."""

    def shares(self, ends: Integers, done: int, processes: Processes) -> Shares:
        """Return what is left of an epoch of which `done` units are done. ends: of its label batches."""


@dataclass(frozen=True, kw_only=True)
class EqualCut:
    """Steps of `batch` units per process; the units of a last, smaller one are shared out evenly."""

    batch: int
    drop_last: bool

    def shares(self, ends: Integers, done: int, processes: Processes) -> Shares:
        """Cut; refuse an epoch that cannot be shared out at all."""
        (rank, world), total = processes, int(ends[-1])
        if total < world:
            raise InvalidArgumentError(
                "an epoch has too few rows for so many processes",
                expected=f"at least {world}",
                got=total,
                hint="raise batches_per_epoch",
            )
        full, rest = divmod(max(0, total - done), self.batch * world)
        last = 0 if self.drop_last else rest // world
        sizes = np.array([self.batch] * full + [last] * (last > 0), np.int64)
        begins = done + np.arange(len(sizes)) * self.batch * world
        starts = begins + rank * sizes
        return Shares(starts, starts + sizes, begins + sizes * world)


@dataclass(frozen=True, kw_only=True)
class GlobalCut:
    """Steps of `batch` rows of all processes together, or of one label batch each where it is None."""

    batch: int | None
    drop_last: bool

    def shares(self, ends: Integers, done: int, processes: Processes) -> Shares:
        """Cut; a share may be empty."""
        (rank, world), total = processes, int(ends[-1])
        if self.batch is None:
            after = ends[ends > done]
        else:
            after = np.minimum(np.arange(done, max(total, done), self.batch) + self.batch, total)
            if self.drop_last and (total - done) % self.batch:
                after = after[:-1]
        begins = np.concatenate([[done], after[:-1]])[: len(after)]
        rows = after - begins
        # Rounded up, so that the first process, which logs and saves, always has a row.
        starts, stops = (begins - (-part * rows) // world for part in (rank, rank + 1))
        return Shares(starts, stops, after)


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

    def steps(self, position: Position, cut: Cut, processes: Processes) -> Iterator[Step]:
        """Yield this process's steps from a position on; all have the same number of steps."""
        starts, stops, after = cut.shares(self.ends, position.done, processes)
        for units, done in zip((stops - starts).tolist(), after.tolist(), strict=True):
            end = Position(self.epoch + 1)
            if done != after[-1]:
                end = Position(self.epoch, done, position.steps + 1)
            yield Step(position, units, end, processes)
            position = end

    def runs(self, position: Position, cut: Cut, processes: Processes) -> Iterator[tuple[int, Runs]]:
        """Yield this process's label batches from a position on: (place, the units it takes of it)."""
        starts, stops = _ranges(cut.shares(self.ends, position.done, processes))
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


def _ranges(shares: Shares) -> tuple[Integers, Integers]:
    """Return a process's units as ranges [starts, stops), those that follow one another joined."""
    taken = shares.stops > shares.starts
    starts, stops = shares.starts[taken], shares.stops[taken]
    apart = np.ones(len(starts) + 1, np.bool_)
    apart[1:-1] = starts[1:] != stops[:-1]
    return starts[apart[:-1]], stops[apart[1:]]
