"""The image order of PyTorch's RandomSampler, without PyTorch.

SRe2L and its kin store no image ids: they follow from ``RandomSampler(dataset, generator)`` with one
generator, seeded once and used epoch after epoch. What an epoch takes from the generator changed:

until 1.10   one permutation an epoch
since 1.11   two: the second serves ``num_samples`` that are no multiple of the dataset, and is drawn
             (and thrown away) even when nothing is left over

Both draw with ``torch.randperm`` on the CPU: a Fisher-Yates shuffle that takes 32 bits of MT19937 for
every step, modulo the number of places left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.records import IntArray

Era = Literal["old", "new"]
ERAS: tuple[Era, ...] = ("new", "old")
"""PyTorch since 1.11, PyTorch until 1.10."""
PERMUTATIONS_PER_EPOCH: dict[Era, int] = {"old": 1, "new": 2}

DEFAULT_SEED = 42
MAX_IMAGES = (2**32 - 1) // 20
"""Above this PyTorch draws 64 bits a step."""

_WORDS = 624


class RandomOrder:
    """Permutations as ``torch.randperm(count, generator=g)`` gives them one after another."""

    def __init__(self, count: int, *, seed: int = DEFAULT_SEED) -> None:
        if not 1 <= count <= MAX_IMAGES:
            raise InvalidArgumentError(
                "cannot rebuild the order of that many images", expected=f"1 to {MAX_IMAGES}", got=count
            )
        self._count = count
        self._generator = _torch_generator(seed)

    def skip(self) -> None:
        """Pass over one permutation."""
        self._generator.random_raw(self._count - 1, output=False)

    def next(self) -> IntArray:
        """Return the next permutation: int32 [count]."""
        places_left = np.arange(self._count, 1, -1, dtype=np.uint64)
        steps = self._generator.random_raw(self._count - 1) % places_left
        order = list(range(self._count))
        for i, step in enumerate(steps.tolist()):
            order[i], order[i + step] = order[i + step], order[i]
        return np.array(order, np.int32)


def epoch_orders(count: int, *, era: Era, seed: int = DEFAULT_SEED) -> Iterator[IntArray]:
    """Yield the image ids of epoch 0, 1, 2, ... in the order they were seen: int32 [count] each."""
    permutations = RandomOrder(count, seed=seed)
    while True:
        yield permutations.next()
        for _ in range(PERMUTATIONS_PER_EPOCH[era] - 1):
            permutations.skip()


class SampledOrders:
    """The order of any epoch, as `epoch_orders` yields them; asking for them in turn is cheapest."""

    def __init__(self, count: int, *, era: Era = "new", seed: int = DEFAULT_SEED) -> None:
        self._count, self._era, self._seed = count, era, seed
        self._restart()

    def _restart(self) -> None:
        self._permutations = RandomOrder(self._count, seed=self._seed)
        self._epoch = -1
        self._order = np.empty(0, np.int32)

    def __getitem__(self, epoch: int) -> IntArray:
        """Return int32 [count]."""
        if epoch < self._epoch:
            self._restart()
        drawn = PERMUTATIONS_PER_EPOCH[self._era]
        while self._epoch < epoch:
            wanted = self._epoch + 1 == epoch
            if wanted:
                self._order = self._permutations.next()
            for _ in range(drawn - 1 if wanted else drawn):
                self._permutations.skip()
            self._epoch += 1
        return self._order


def _torch_generator(seed: int) -> np.random.MT19937:
    """Return MT19937 seeded as ``torch.Generator().manual_seed`` does: by the lower 32 bits."""
    key = np.empty(_WORDS, np.uint32)
    word = seed % 2**32
    for i in range(_WORDS):
        key[i] = word
        word = (1812433253 * (word ^ word >> 30) + i + 1) % 2**32
    generator = np.random.MT19937()
    generator.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": _WORDS}}
    return generator
