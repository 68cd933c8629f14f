"""Which label batches an epoch of a script is: pure functions of the pool, a seed and the epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.random_streams import Stream, keyed_generator
from lpld_labels.loader.authors.programme import Epochs, Places
from lpld_labels.loader.sampling import WHOLE_EPOCHS, Sampling
from lpld_labels.pool.reader import PoolReader


def complete_places(pool: PoolReader) -> Places:
    """Return the places of the label batches that have every row."""
    places = np.flatnonzero(pool.index.rows == pool.header.batch_size)
    if len(places) == 0:
        raise InvalidArgumentError(
            "the pool has no complete batch",
            where=pool.location,
            expected=f"batches of {pool.header.batch_size} rows",
            got=f"at most {int(pool.index.rows.max(initial=0))}",
        )
    return places


def complete_per_epoch(pool: PoolReader) -> int:
    """Return how many complete batches one pass over the images makes."""
    return max(1, len(pool.images) // pool.header.batch_size)


def stored_per_epoch(pool: PoolReader) -> int:
    """Return the batches of a stored epoch, if all were kept; else those of a pass over the images.

    A labelling program may have stopped within the last epoch.
    """
    epochs, counts = np.unique(pool.index.epochs, return_counts=True)
    longest = int(pool.index.batches.max(initial=0)) + 1
    whole = np.array_equal(epochs, np.arange(len(epochs))) and (counts[:-1] == longest).all()
    return longest if whole and counts[0] == longest else complete_per_epoch(pool)


@dataclass(frozen=True, kw_only=True, eq=False)
class Among:
    """A policy on some of a pool's batches. chosen: int64 [n], their places."""

    sampling: Sampling
    chosen: Places

    def places(self, epoch: int) -> Places:
        """Return places in the pool's index: int64 [n]."""
        return self.chosen[self.sampling.places(epoch)]


def policy_epochs(pool: PoolReader, policy: str, *, seed: int, batches_per_epoch: int | None) -> Epochs:
    """Return the epochs of a policy (see `sampling`).

    Policies that take epochs as they are stored end with the short batch they may have; all others
    draw from complete batches only.
    """
    if policy in WHOLE_EPOCHS:
        return Sampling.of(pool, policy, seed=seed, batches_per_epoch=batches_per_epoch)
    chosen = complete_places(pool)
    sampling = Sampling(
        policy=policy,
        seed=seed,
        epochs=pool.index.epochs[chosen],
        batches_per_epoch=batches_per_epoch or complete_per_epoch(pool),
    )
    return Among(sampling=sampling, chosen=chosen)


@dataclass(frozen=True, kw_only=True, eq=False)
class CropEpochs:
    """Epochs in which every group of images comes once, with several of its crops.

    A group is a batch number: a pool imported from FKD holds other crops of the same images under the
    same number of every epoch. A step takes `groups` groups with `crops` crops each, and its places
    are ordered by crop, then by group. Where a group has fewer crops left, they come again.
    """

    numbers: npt.NDArray[np.int32]
    seed: int
    groups: int
    crops: int
    _members: list[Places] = field(init=False)

    def __post_init__(self) -> None:
        members = [np.flatnonzero(self.numbers == number) for number in np.unique(self.numbers)]
        object.__setattr__(self, "_members", members)

    def places(self, epoch: int) -> Places:
        """Return places in the pool's index: int64 [n]."""
        generator = keyed_generator(self.seed, Stream.CROPS_OF_IMAGES, epoch)
        order = np.argsort(generator.random(len(self._members)), kind="stable").tolist()
        # The last group may be short, and stays last: then every step before it is whole.
        order.sort(key=lambda group: group == len(self._members) - 1)
        drawn = [self._drawn(group, generator) for group in order]
        steps = [drawn[first : first + self.groups] for first in range(0, len(drawn), self.groups)]
        return np.concatenate([np.stack(step, axis=1).reshape(-1) for step in steps])

    def _drawn(self, group: int, generator: np.random.Generator) -> Places:
        members = self._members[group]
        shuffled = members[np.argsort(generator.random(len(members)), kind="stable")]
        return np.resize(shuffled, self.crops)
