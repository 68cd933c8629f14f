"""Sampling: what each promises, as a function of (seed, epoch)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader.schedule import SAMPLINGS, Schedule

# Batches per stored epoch: two epochs were pruned to pieces, one is gone.
STORED = np.repeat(np.array([0, 1, 3, 4], np.int32), [5, 2, 1, 4])


def schedule(sampling: str, *, seed: int = 0, length: int = 5) -> Schedule:
    rows = np.full(len(STORED), 8)
    return Schedule(sampling=sampling, seed=seed, epochs=STORED, rows=rows, batches_per_epoch=length)


@given(
    sampling=st.sampled_from(SAMPLINGS),
    seed=st.integers(0, 2**32),
    epoch=st.integers(0, 500),
    length=st.integers(1, 40),
)
def test_order_is_a_pure_function_of_seed_and_epoch(
    sampling: str, seed: int, epoch: int, length: int
) -> None:
    first = schedule(sampling, seed=seed, length=length)
    first.places(epoch + 1)
    second = schedule(sampling, seed=seed, length=length)
    places = first.places(epoch)
    np.testing.assert_array_equal(places, second.places(epoch))
    assert places.min() >= 0
    assert places.max() < len(STORED)
    if sampling in ("batches", "shuffled", "stored"):
        assert len(places) == length


def test_batches_are_drawn_from_the_whole_pool_with_replacement() -> None:
    found = schedule("batches")
    drawn = [found.places(epoch) for epoch in range(2000)]
    share = np.bincount(np.concatenate(drawn), minlength=len(STORED)) / (2000 * 5)
    np.testing.assert_allclose(share, 1 / len(STORED), atol=0.015)
    assert any(len(set(places.tolist())) < 5 for places in drawn)
    assert any(len(set(STORED[places].tolist())) > 2 for places in drawn)


def test_epochs_are_drawn_whole_with_replacement() -> None:
    found = schedule("epochs", length=99)
    drawn = [found.places(epoch) for epoch in range(1000)]
    for places in drawn:
        np.testing.assert_array_equal(places, np.flatnonzero(STORED[places[0]] == STORED))
    counts = Counter(int(STORED[places[0]]) for places in drawn)
    assert set(counts) == {0, 1, 3, 4}
    assert min(counts.values()) > 180


def test_epoch_by_epoch_goes_through_the_survivors_in_order() -> None:
    found = schedule("epoch-by-epoch")
    seen = [STORED[found.places(epoch)] for epoch in range(8)]
    assert [int(epochs[0]) for epochs in seen] == [0, 1, 3, 4] * 2
    assert [len(epochs) for epochs in seen] == [5, 2, 1, 4] * 2


@pytest.mark.parametrize("length", [1, 5, 12, 31])
def test_shuffled_uses_every_batch_once_before_any_comes_again(length: int) -> None:
    found = schedule("shuffled", length=length)
    stream = np.concatenate([found.places(epoch) for epoch in range(60)])
    passes = stream[: len(stream) // 12 * 12].reshape(-1, 12)
    np.testing.assert_array_equal(np.sort(passes, axis=1), np.tile(np.arange(12), (len(passes), 1)))
    assert any((first != second).any() for first, second in pairwise(passes))


def test_stored_goes_round_and_round_in_key_order() -> None:
    found = schedule("stored")
    stream = np.concatenate([found.places(epoch) for epoch in range(12)])
    np.testing.assert_array_equal(stream, np.tile(np.arange(12), 5))


@pytest.mark.parametrize("sampling", ["batches", "epochs", "shuffled"])
def test_seeds_differ(sampling: str) -> None:
    first, second = (schedule(sampling, seed=seed) for seed in (1, 2))
    assert any(first.places(e).tolist() != second.places(e).tolist() for e in range(20))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="unknown sampling"):
        schedule("luck")
    with pytest.raises(InvalidArgumentError, match="batches_per_epoch >= 1"):
        schedule("batches", length=0)
    with pytest.raises(InvalidArgumentError, match="epochs count from 0"):
        schedule("batches").places(-1)
    with pytest.raises(InvalidArgumentError, match="holds no batches"):
        Schedule(sampling="batches", seed=0, epochs=STORED[:0], rows=STORED[:0], batches_per_epoch=1)
