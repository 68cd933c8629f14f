"""What the next pass over a script's loader plays.

Stock loaders of ours choose label batches themselves. The authors' scripts choose: they name an epoch, a
batch or a list of batches, in their own numbers, before every pass. These are kept here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader.cursor import Task
from lpld_labels.loader.processes import current_processes
from lpld_labels.pool.index import BatchIndex

Places = npt.NDArray[np.int64]


class Epochs(Protocol):
    """Says which label batches an epoch is."""

    def places(self, epoch: int) -> Places:
        """Return places in the pool's index: int64 [n]."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """Which process of how many; None: as torch.distributed says when a pass begins."""

    rank: int | None = None
    world_size: int | None = None

    def __post_init__(self) -> None:
        if (self.rank is None) != (self.world_size is None):
            raise InvalidArgumentError(
                "give rank and world_size together", got=f"{self.rank} and {self.world_size}"
            )

    def now(self) -> tuple[int, int]:
        """Return (rank, number of processes)."""
        return current_processes(self.rank, self.world_size)


class Programme(Sampler[Task]):
    """The label batches of the next pass, as tasks for the workers.

    Each pass plays the next epoch, unless the script has said what to play.

    A short label batch is played only as the last of a pass. Scripts that accumulate gradients cut
    every other batch into as many parts as a whole one has, and divide by zero where a part is empty.
    Elsewhere the complete batch before it takes its place, as LPLD's script itself does with the last
    batch of an epoch.
    """

    def __init__(
        self,
        epochs: Epochs,
        index: BatchIndex,
        *,
        batch_size: int,
        numbered: Places,
        slots: int,
        process: Process,
        together: int = 1,
        short_anywhere: bool = False,
    ) -> None:
        """Start with epoch 0.

        numbered: int64 [n], the place of what a script calls batch 0, 1, ... n - 1.
        together: how many label batches make one step; processes share steps.
        short_anywhere: for scripts that do not accumulate, play short batches wherever they come.
        """
        self._epochs = epochs
        self._numbered = numbered
        self._slots = slots
        self._process = process
        self._together = together
        self._instead = np.arange(len(index)) if short_anywhere else _complete_before(index.rows, batch_size)
        self._epoch = 0
        self._played = False
        self._named: Places | None = None

    # What scripts call on a sampler or a dataset

    def set_epoch(self, epoch: int) -> None:
        """Play an epoch next."""
        self._epoch, self._played, self._named = epoch, False, None

    def set_batch(self, number: int) -> None:
        """Play one batch, in every pass until told otherwise."""
        self.set_batch_list([number])

    def set_batch_list(self, numbers: Sequence[int]) -> None:
        """Play these batches in this order, in every pass until told otherwise."""
        asked = np.asarray(numbers, np.int64).reshape(-1)
        known = len(self._numbered)
        if len(asked) == 0 or int(asked.min()) < 0 or int(asked.max()) >= known:
            raise InvalidArgumentError(
                "the script asks for a batch that the pool does not have",
                expected=f"batch numbers 0 to {known - 1}",
                got=f"{int(asked.max())}" if len(asked) else "an empty list",
                hint="let the script draw from as many batches as there are: raise its --prune_ratio",
            )
        self._named = self._numbered[asked]

    def get_batch_list_img_mapping(self) -> dict[int, int]:
        """Return nothing: a script hands this on to the dataset, which needs no such table here."""
        return {}

    # What the loader calls

    def begin(self) -> None:
        """Start a pass: the next epoch, unless the script has chosen."""
        if self._played and self._named is None:
            self._epoch += 1
        self._played = True

    def places(self) -> Places:
        """Return this process's label batches of the current pass."""
        places = self._epochs.places(self._epoch) if self._named is None else self._named
        rank, world = self._process.now()
        if world > 1:
            steps = places[: len(places) // self._together * self._together].reshape(-1, self._together)
            if not 0 <= rank < world <= len(steps):
                raise InvalidArgumentError(
                    "a pass cannot be shared out like this",
                    expected=f"ranks below {world}, at most {len(steps)} processes",
                    got=f"rank {rank} of {world}",
                )
            places = steps[: len(steps) // world * world][rank::world].reshape(-1)
        return np.concatenate([self._instead[places[:-1]], places[-1:]])

    def __iter__(self) -> Iterator[Task]:
        for number, place in enumerate(self.places().tolist()):
            yield Task(place, number % self._slots)

    def __len__(self) -> int:
        return len(self.places())


def _complete_before(rows: npt.NDArray[np.int32], batch_size: int) -> Places:
    """Return for every place itself if it is complete, else the nearest complete one before it."""
    places = np.arange(len(rows))
    complete = np.flatnonzero(rows == batch_size)
    if len(complete) == 0:
        return places
    return complete[np.maximum(np.searchsorted(complete, places, side="right") - 1, 0)]
