"""Which label batches a training epoch uses, and in which order: pure functions of (seed, epoch).

The paper names two random processes: which labels stay (pruning) and how those that stayed are used
again (this module). "We randomly sample the labels for model training in order to ensure diversity";
its improved label pool (ILP) does so "by allowing batches in different epochs to form a new epoch",
which "breaks the fixed batch orders and the fixed combination of augmentations within an epoch".

| policy         | a training epoch is                                              | in the paper           |
|----------------|------------------------------------------------------------------|------------------------|
| batches        | L batches drawn from all of the pool, with replacement           | ILP: its main results  |
| epochs         | one stored epoch drawn with replacement, in stored order         | without ILP            |
| epoch-by-epoch | stored epoch number (epoch mod E) of the E that survive          | no pruning: 1x         |
| shuffled       | the next L batches of endless shuffles of the pool: the default  | not used               |
| stored         | the next L batches of the pool in key order, round and round     | not used               |

L is the number of batches that labelled one pass over the images, ceil(images / batch size), unless
told otherwise. A pool that holds fewer than L batches works with every policy: with "batches" and
"shuffled" batches come again within an epoch, with the epoch policies an epoch is as long as what
is left of it.

Label batches may lack rows (the last one of a stored epoch does where the images do not divide), so
epochs may differ in length. `equal_epochs` leaves such batches out, as the paper's pruning does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.random_streams import Stream, keyed_generator
from lpld_labels.pool.reader import PoolReader

POLICIES = ("batches", "epochs", "epoch-by-epoch", "shuffled", "stored")
WHOLE_EPOCHS = ("epochs", "epoch-by-epoch")
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sampling:
    """A policy bound to a pool.

    epochs: int32 [N], the stored epoch of each batch, in key order.
    batches_per_epoch: L of the table above.
    chosen: int64 [N], where these batches are in the pool's index; None if they are all of it.
    """

    policy: str
    seed: int
    epochs: npt.NDArray[np.int32]
    batches_per_epoch: int
    chosen: Places | None = None

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InvalidArgumentError(
                "unknown sampling policy", expected=f"one of {', '.join(POLICIES)}", got=self.policy
            )
        if self.batches_per_epoch < 1:
            raise InvalidArgumentError(
                "an epoch needs a batch", expected="batches_per_epoch >= 1", got=self.batches_per_epoch
            )
        if len(self.epochs) == 0:
            raise InvalidArgumentError("the pool holds no batches to sample from")

    @staticmethod
    def of(
        pool: PoolReader,
        policy: str = "shuffled",
        *,
        seed: int = 0,
        batches_per_epoch: int | None = None,
        equal_epochs: bool = False,
    ) -> Sampling:
        """Bind a policy to a pool; L follows from the pool's images and batch size unless given."""
        if batches_per_epoch is None:
            batches_per_epoch = max(1, -(-len(pool.images) // pool.header.batch_size))
        epochs, chosen = pool.index.epochs, None
        if equal_epochs:
            chosen = np.flatnonzero(pool.index.rows == pool.header.batch_size)
            epochs = epochs[chosen]
        sampling = Sampling(
            policy=policy, seed=seed, epochs=epochs, batches_per_epoch=batches_per_epoch, chosen=chosen
        )
        if equal_epochs:
            sampling._check_equal(pool.location)
        return sampling

    def _check_equal(self, where: str) -> None:
        lengths = np.unique(np.unique(self.epochs, return_counts=True)[1])
        if self.policy in WHOLE_EPOCHS and len(lengths) > 1:
            raise InvalidArgumentError(
                "the pool's epochs have different numbers of batches",
                where=where,
                expected=f"equal epochs for policy {self.policy}",
                got=f"{lengths[0]} to {lengths[-1]} batches",
                hint="choose another policy, or go without equal_epochs",
            )

    def places(self, epoch: int) -> Places:
        """Return the batches of a training epoch in order, as places in the pool's index: int64 [n]."""
        if epoch < 0:
            raise InvalidArgumentError("epochs count from 0", expected=">= 0", got=epoch)
        drawn = self._drawn(epoch)
        return drawn if self.chosen is None else self.chosen[drawn]

    def _drawn(self, epoch: int) -> Places:
        count, length = len(self.epochs), self.batches_per_epoch
        if self.policy == "batches":
            return _below(count, self._draws(epoch, length))
        if self.policy == "stored":
            return np.arange(epoch * length, (epoch + 1) * length) % count
        if self.policy == "shuffled":
            return self._shuffled(epoch)
        survivors = np.unique(self.epochs)
        if self.policy == "epochs":
            chosen = int(_below(len(survivors), self._draws(epoch, 1))[0])
        else:
            chosen = epoch % len(survivors)
        return np.flatnonzero(self.epochs == survivors[chosen])

    def _shuffled(self, epoch: int) -> Places:
        """Take L places from shuffles laid end to end; shuffle k is keyed by (seed, k)."""
        count, length = len(self.epochs), self.batches_per_epoch
        start, stop = epoch * length, (epoch + 1) * length
        first, last = start // count, (stop - 1) // count
        shuffles = [
            np.argsort(self._draws(shuffle, count), kind="stable") for shuffle in range(first, last + 1)
        ]
        return np.concatenate(shuffles)[start - first * count : stop - first * count]

    def _draws(self, stream: int, count: int) -> npt.NDArray[np.float64]:
        """Return uniform draws, the one stream of NumPy's that stays the same between its releases."""
        return keyed_generator(self.seed, Stream.LOADER_ORDER, stream).random(count)


def _below(count: int, draws: npt.NDArray[np.float64]) -> Places:
    """Turn uniform draws into whole numbers below `count`."""
    return np.minimum((draws * count).astype(np.int64), count - 1)
