"""Stateless randomness: every draw depends only on a seed and a key such as (epoch, batch).

`batch_ranks` gives each batch a 64-bit rank. Random pruning keeps the lowest ranks, so a smaller selection
is part of a larger one, and `build` knows which batches will remain. Each `Stream` has its own keys.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.records import BatchKey

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


class Stream(IntEnum):
    """The first number in the key of a random generator. It tells what the generator is for.

    A generator for views of a pool has no such number: its key is (epoch) or (epoch, batch). The large values
    exceed any realistic number of epochs. Changing a value would change images, orders and views.
    """

    RECOVERY_VIEWS = 1  # (two numbers of the unit's key, iteration): crop, flip and roll of recovered images.
    RECOVERY_NOISE = 2  # (two numbers of the unit's key, 0): the noise that recovery starts from.
    STITCHED_CHOICE = 3  # (class, 0, 0): which real images of a class are candidates for stitching.
    STITCHED_CROPS = 4  # (image, 0, 0): which crops of a real image are tried.
    ANALYSIS_SAMPLE = 5  # (class, 0, 0): which real images an analysis uses.
    SQUEEZE_ORDER = 6  # (pass, 0, 0): the order in which real images are squeezed.
    SQUEEZE_VIEWS = 7  # (pass, image, 0): crop and flip of a real image that is squeezed.
    PROBE = 8  # (): the images of a teacher's probe.
    LOADER_ORDER = 0x5A4D504C  # (cycle or epoch): which batches or rows a loader yields, in which order.
    CROPS_OF_IMAGES = 0x464B4443  # (epoch): the order of images in FKD's scripts, and their crops.
    FRESH_VIEWS = 0x46524553  # (): the seed of the views that a loader draws for hard labels.
    TRAINING = 0x54524149  # (epoch, step, process): torch's own draws while a student or teacher trains.


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply the finaliser of SplitMix64: every input bit affects every output bit."""
    with np.errstate(over="ignore"):
        values = values + _GOLDEN
        values = (values ^ (values >> np.uint64(30))) * _FIRST
        values = (values ^ (values >> np.uint64(27))) * _SECOND
        mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def batch_ranks(seed: int, epochs: npt.ArrayLike, batches: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """Return the rank of each (epoch, batch): uint64, in the shape of `epochs` and `batches`."""
    state = _mixed(np.full(1, seed % 2**64, np.uint64))
    for part in (epochs, batches):
        state = _mixed(state ^ np.asarray(part, np.uint64))
    return state


def lowest_ranked(seed: int, keys: list[BatchKey], count: int) -> list[BatchKey]:
    """Return the `count` keys of lowest rank, in key order. Smaller selections are subsets of larger ones."""
    if not 0 <= count <= len(keys):
        raise InvalidArgumentError("batch count is out of range", expected=f"0 to {len(keys)}", got=count)
    array = np.asarray(keys, np.int64).reshape(-1, 2)
    ranks = batch_ranks(seed, array[:, 0], array[:, 1])
    # Ties of 64-bit ranks are very unlikely. Breaking them by key makes the result deterministic.
    order = np.lexsort((array[:, 1], array[:, 0], ranks))[:count]
    return sorted(keys[i] for i in order.tolist())


def keyed_generator(seed: int, *place: int) -> np.random.Generator:
    """Return a random generator that depends only on the seed and a key such as (epoch, batch).

    seed: 0 to 2**64 - 1. place: the numbers of the key, each from 0 to 2**32 - 1.
    Different seeds or keys give independent streams, even if one key is a prefix of another.
    """
    if not 0 <= seed < 2**64 or not 0 <= min(place, default=0) <= max(place, default=0) < 2**32:
        raise InvalidArgumentError(
            "seed or key is out of range",
            expected="a seed from 0 to 2**64 - 1 and a key of numbers from 0 to 2**32 - 1",
            got=(seed, *place),
        )
    # SeedSequence splits large numbers into words and ignores trailing zeros. Without the leading length and
    # two words per seed, (seed, epoch) and (seed, epoch, batch 0) would share one stream.
    words = [len(place), seed % 2**32, seed >> 32, *place]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))
