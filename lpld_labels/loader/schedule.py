"""Which rows each process trains on, step by step: pure functions of (seed, epoch, process).

First, an epoch's label batches are chosen, in order. The paper's improved label pool (ILP) samples them at
random, "allowing batches in different epochs to form a new epoch".

| sampling       | a training epoch is                                              | in the paper           |
|----------------|------------------------------------------------------------------|------------------------|
| batches        | L batches drawn from all of the pool, with replacement           | ILP: the main results  |
| epochs         | one stored epoch drawn with replacement, in stored order         | without ILP            |
| epoch-by-epoch | the stored epoch at index (epoch mod E) of the E in the pool     | no pruning: 1x         |
| shuffled       | the next L batches of endless shuffles of the pool: the default  | not used               |
| stored         | the next L batches in key order; starts over at the pool's end   | not used               |

L is the number of batches in one pass over the images, ceil(images / batch size), unless given. In a pool of
fewer than L batches, "batches", "shuffled" and "stored" repeat batches within an epoch; the other two have
shorter epochs.

An epoch of hard labels, whatever the sampling, uses the next L label batches of endless passes over the
images, with fresh views. If all label batches of the pool are complete, so are these fresh batches.

Second, the epoch is divided among processes. The rows of its label batches are concatenated. With W processes
and b rows per batch, step s covers rows [s * b * W, (s + 1) * b * W). Process r takes the r-th block of b
rows, so a step has the same rows in the same order as with one process and b * W rows. A shorter last step is
shared evenly (unless drop_last), so all processes make the same number of steps; at most W - 1 rows at an
epoch's end are dropped. If batches are whole label batches, the unit is a label batch instead of a row and b
is 1: process r takes label batch s * W + r in step s.

Views are mixed with partners of their own label batch. A process that takes only some rows of a label batch
also renders their partners: at most one per row, and none if b is a multiple of the label batch's size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch.distributed

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.limits import MAX_INDEX, MAX_INTEGER
from lpld_labels.format.random_streams import Stream, keyed_generator
from lpld_labels.format.records import BatchKey
from lpld_labels.pool.reader import PoolReader

SAMPLINGS = ("batches", "epochs", "epoch-by-epoch", "shuffled", "stored")
WHOLE_EPOCHS = ("epochs", "epoch-by-epoch")
STATE_VERSION = 3
MAX_EPOCH_BATCHES = 1 << 24  # The order of an epoch is kept in memory.

Integers = npt.NDArray[np.int64]
Runs = tuple[tuple[int, int], ...]
"""Ranges [start, stop) of units of one label batch, in order."""


class Processes(NamedTuple):
    """Process number `rank` of the `world` processes that share each epoch."""

    rank: int
    world: int


class Position(NamedTuple):
    """Where a run stands: all processes together have delivered `done` units of `epoch`, in `steps` steps."""

    epoch: int
    done: int = 0
    steps: int = 0


class Step(NamedTuple):
    """One batch of one process, with `units` rows or label batches. All processes continue at `after`."""

    before: Position
    units: int
    after: Position
    processes: Processes

    @property
    def is_last(self) -> bool:
        return self.after.epoch != self.before.epoch


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """The label batches, steps and shares of every epoch.

    epochs, rows: [N], stored epoch and row count of each label batch, in key order. batches_per_epoch: L.
    equal_epochs: skip incomplete label batches. batch: rows per process and step; None: a label batch.
    hard: whether an epoch uses hard labels. fresh_rows: row count of each label batch of a pass over images.
    """

    sampling: str
    seed: int
    epochs: npt.NDArray[np.integer]
    rows: npt.NDArray[np.integer]
    batches_per_epoch: int
    fresh_rows: npt.NDArray[np.integer]
    hard: Callable[[int], bool] = lambda _: False
    equal_epochs: bool = False
    batch: int | None = None
    drop_last: bool = False
    _units: dict[int, tuple[Integers, Integers]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.sampling not in SAMPLINGS:
            raise InvalidArgumentError(
                "unknown sampling", expected=f"one of {', '.join(SAMPLINGS)}", got=self.sampling
            )
        if not 1 <= self.batches_per_epoch <= MAX_EPOCH_BATCHES:
            expected = f"batches_per_epoch from 1 to {MAX_EPOCH_BATCHES}"
            problem = "number of batches in an epoch is out of range"
            raise InvalidArgumentError(problem, expected=expected, got=self.batches_per_epoch)
        if len(self.epochs) == 0:
            raise InvalidArgumentError("the pool contains no batches to sample from")
        lengths = np.unique(np.unique(self.epochs[self._usable], return_counts=True)[1])
        if self.equal_epochs and self.sampling in WHOLE_EPOCHS and len(lengths) > 1:
            raise InvalidArgumentError(
                "the pool's epochs have different numbers of batches",
                expected=f"equal epochs for sampling {self.sampling}",
                got=f"{lengths[0]} to {lengths[-1]} batches",
                hint="choose another sampling, or leave out equal_epochs",
            )

    @staticmethod
    def of(pool: PoolReader, *, batches_per_epoch: int | None = None, **settings: Any) -> Schedule:
        """Return the schedule of a pool. batches_per_epoch: by default, images / batch size, rounded up."""
        if batches_per_epoch is None:
            batches_per_epoch = max(1, -(-len(pool.images) // pool.header.batch_size))
        full, images, stored = pool.header.batch_size, len(pool.images), pool.index.rows
        fresh = np.minimum(full, images - np.arange(0, images, full))
        if settings.get("equal_epochs") or (stored == full).all():
            fresh = fresh[fresh == fresh[0]]
        return Schedule(
            epochs=pool.index.epochs,
            rows=stored,
            batches_per_epoch=batches_per_epoch,
            fresh_rows=fresh,
            **settings,
        )

    @property
    def _usable(self) -> Integers:
        if not self.equal_epochs:
            return np.arange(len(self.epochs))
        return np.flatnonzero(self.rows == self.rows.max())

    def places(self, epoch: int) -> Integers:
        """Return the index positions of a training epoch's label batches, in training order: int64 [n].

        Epochs of hard labels have no stored batches: positions number the batches of repeated passes over
        the images, and continue from epoch to epoch.
        """
        if not 0 <= epoch <= MAX_INDEX:
            raise InvalidArgumentError("epoch is out of range", expected=f"0 to {MAX_INDEX}", got=epoch)
        usable = self._usable
        count, length = len(usable), self.batches_per_epoch
        if self.hard(epoch):
            return np.arange(epoch * length, (epoch + 1) * length)
        if self.sampling == "batches":
            return usable[_below(count, self._draws(epoch, length))]
        if self.sampling == "stored":
            return usable[np.arange(epoch * length, (epoch + 1) * length) % count]
        if self.sampling == "shuffled":
            return usable[self._shuffled(epoch, count)]
        stored = self.epochs[usable]
        survivors = np.unique(stored)
        chosen = epoch % len(survivors)
        if self.sampling == "epochs":
            chosen = int(_below(len(survivors), self._draws(epoch, 1))[0])
        return usable[np.flatnonzero(stored == survivors[chosen])]

    def _shuffled(self, epoch: int, count: int) -> Integers:
        """Return an epoch's part of the concatenated shuffles. Shuffle k depends only on seed and k."""
        start, stop = epoch * self.batches_per_epoch, (epoch + 1) * self.batches_per_epoch
        first, last = start // count, (stop - 1) // count
        shuffles = [
            np.argsort(self._draws(shuffle, count), kind="stable") for shuffle in range(first, last + 1)
        ]
        return np.concatenate(shuffles)[start - first * count : stop - first * count]

    def _draws(self, stream: int, count: int) -> npt.NDArray[np.float64]:
        """Return `count` draws of NumPy's `random`: only its values stay the same in all NumPy releases."""
        return keyed_generator(self.seed, Stream.LOADER_ORDER, stream).random(count)

    def fresh_key(self, epoch: int, place: int) -> BatchKey | None:
        """Return the key (pass, batch) of a label batch with fresh views; None if the pool stores it."""
        return BatchKey(*divmod(place, len(self.fresh_rows))) if self.hard(epoch) else None

    def _rows(self, epoch: int, places: Integers) -> npt.NDArray[np.integer]:
        return self.fresh_rows[places % len(self.fresh_rows)] if self.hard(epoch) else self.rows[places]

    def units(self, epoch: int) -> tuple[Integers, Integers]:
        """Return `places(epoch)` and the running total of units (rows or label batches): int64 [n] each."""
        if epoch not in self._units:
            places = self.places(epoch)
            sizes = np.ones(len(places), np.int64) if self.batch is None else self._rows(epoch, places)
            # Keep the last few epochs: they are used often, and workers run ahead.
            for old in list(self._units)[:-2]:
                del self._units[old]
            self._units[epoch] = (places, np.cumsum(sizes, dtype=np.int64))
        return self._units[epoch]

    def rows_of(self, epoch: int) -> int:
        return int(self._rows(epoch, self.units(epoch)[0]).sum())

    def _sizes(self, position: Position, world: int) -> Integers:
        """Return how many units each process takes in each remaining step of the position's epoch."""
        total, batch = int(self.units(position.epoch)[1][-1]), self.batch or 1
        if total < world:
            raise InvalidArgumentError(
                "an epoch is too short for the number of processes",
                expected=f"at least {world} rows or label batches",
                got=total,
                hint="raise batches_per_epoch",
            )
        full, rest = divmod(max(0, total - position.done), batch * world)
        last = 0 if self.drop_last else rest // world
        sizes = np.full(full + (last > 0), batch, np.int64)
        sizes[full:] = last
        return sizes

    def count(self, position: Position, processes: Processes) -> int:
        """Return how many steps of the position's epoch remain."""
        return len(self._sizes(position, processes.world))

    def steps(self, position: Position, processes: Processes) -> Iterator[Step]:
        """Yield the remaining steps of the position's epoch; all processes have equally many."""
        sizes = self._sizes(position, processes.world).tolist()
        for left, units in zip(range(len(sizes), 0, -1), sizes, strict=True):
            done = position.done + units * processes.world
            after = Position(position.epoch, done, position.steps + 1)
            if left == 1:
                after = Position(position.epoch + 1)
            yield Step(position, units, after, processes)
            position = after

    def position(self, epoch: int, steps: int, processes: Processes) -> Position:
        if steps < 0:
            raise InvalidArgumentError("number of steps is negative", expected="at least 0", got=steps)
        before = Position(epoch)
        done = islice(self.steps(before, processes), steps)
        return max((step.after for step in done), default=before)

    def runs(self, position: Position, processes: Processes) -> Iterator[tuple[int, Runs]]:
        """Yield (index position, ranges of units) of each label batch that this process still uses."""
        rank, world = processes
        sizes = self._sizes(position, world)
        if not len(sizes):
            return
        after = position.done + np.cumsum(sizes * world)
        starts = after - sizes * (world - rank)
        stops = starts + sizes
        if world == 1:
            starts, stops = starts[:1], stops[-1:]
        places, ends = self.units(position.epoch)
        begins = np.concatenate([[0], ends[:-1]])
        first = np.searchsorted(ends, starts, side="right")
        touched = np.searchsorted(ends, stops - 1, side="right") - first + 1
        # One entry per pair of a range and a label batch that the range touches.
        within = np.arange(touched.sum()) - np.repeat(np.cumsum(touched) - touched, touched)
        batch = np.repeat(first, touched) + within
        run_starts = np.maximum(np.repeat(starts, touched), begins[batch]) - begins[batch]
        run_stops = np.minimum(np.repeat(stops, touched), ends[batch]) - begins[batch]
        runs = list(zip(run_starts.tolist(), run_stops.tolist(), strict=True))
        groups = np.flatnonzero(np.diff(batch, prepend=-1)).tolist()
        for begin, end in zip(groups, [*groups[1:], len(runs)], strict=True):
            yield int(places[batch[begin]]), tuple(runs[begin:end])

    def identity(self) -> dict[str, Any]:
        """Return the settings on which a saved position depends, as JSON values."""
        return {
            "sampling": self.sampling,
            "seed": self.seed,
            "batches_per_epoch": self.batches_per_epoch,
            "equal_epochs": self.equal_epochs,
            "unit": "label batches" if self.batch is None else "rows",
        }


def parse_state(state: dict[str, Any], expected: dict[str, Any]) -> Position:
    """Return the position in a saved state. Raise if it was saved with a different pool, sampling or seed."""
    for name, value in expected.items():
        if state.get(name) != value:
            raise InvalidArgumentError(
                f"this state belongs to a different run: field '{name}' differs",
                expected=value,
                got=state.get(name),
                hint="open the loader with the settings it was saved with",
            )
    for name in Position._fields:
        number = state.get(name)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_INTEGER:
            problem = f"field '{name}' of the state is wrong"
            raise InvalidArgumentError(problem, expected="an integer of at least 0", got=repr(number)[:100])
    return Position(*(state[name] for name in Position._fields))


def current_processes(rank: int | None = None, world_size: int | None = None) -> Processes:
    """Return rank and number of processes: as given, else torch.distributed's, else (0, 1).

    Call it when an iteration starts: Lightning sets up torch.distributed after the loader is made. Raises if
    a launcher's environment variables contradict the result, to prevent training all ranks on the same rows.
    """
    if rank is not None and world_size is not None:
        return Processes(rank, world_size)
    found = Processes(0, 1)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        found = Processes(torch.distributed.get_rank(), torch.distributed.get_world_size())
    said = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    numbers = {name: int(text) for name, text in said.items() if text.isascii() and text.isdecimal()}
    # Lightning's launcher sets no RANK; a process that is not the first on its machine is not alone.
    not_alone = found.world == 1 and numbers.get("LOCAL_RANK", 0) > 0
    agreed = numbers.get("WORLD_SIZE", found.world) == found.world
    if agreed and numbers.get("RANK", found.rank) == found.rank and not not_alone:
        return found
    raise InvalidArgumentError(
        "the launcher's environment and torch.distributed disagree about the number of processes",
        expected=f"rank {found.rank} of {found.world}, as torch.distributed says"
        if found.world > 1
        else "a run of one process, since torch.distributed is not initialised",
        got=", ".join(f"{name}={value}" for name, value in said.items() if value),
        hint="call torch.distributed.init_process_group before the first batch, or give rank and world_size",
    )


def _below(count: int, draws: npt.NDArray[np.float64]) -> Integers:
    """Turn uniform draws from [0, 1) into integers below `count`."""
    return np.minimum((draws * count).astype(np.int64), count - 1)
