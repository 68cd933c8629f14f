"""Sampling: what each policy promises, as a function of (seed, epoch)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader.sampling import POLICIES, Sampling

# Batches per stored epoch: two epochs were pruned to pieces, one is gone.
STORED = np.repeat(np.array([0, 1, 3, 4], np.int32), [5, 2, 1, 4])


def sampling(policy: str, *, seed: int = 0, length: int = 5) -> Sampling:
    return Sampling(policy=policy, seed=seed, epochs=STORED, batches_per_epoch=length)


@given(
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 2**32),
    epoch=st.integers(0, 500),
    length=st.integers(1, 40),
)
def test_order_is_a_pure_function_of_seed_and_epoch(policy: str, seed: int, epoch: int, length: int) -> None:
    first = sampling(policy, seed=seed, length=length)
    first.places(epoch + 1)
    second = sampling(policy, seed=seed, length=length)
    places = first.places(epoch)
    np.testing.assert_array_equal(places, second.places(epoch))
    assert places.min() >= 0
    assert places.max() < len(STORED)
    if policy in ("batches", "shuffled", "stored"):
        assert len(places) == length


def test_batches_are_drawn_from_the_whole_pool_with_replacement() -> None:
    policy = sampling("batches")
    drawn = [policy.places(epoch) for epoch in range(2000)]
    share = np.bincount(np.concatenate(drawn), minlength=len(STORED)) / (2000 * 5)
    np.testing.assert_allclose(share, 1 / len(STORED), atol=0.015)
    assert any(len(set(places.tolist())) < 5 for places in drawn)
    assert any(len(set(STORED[places].tolist())) > 2 for places in drawn)


def test_epochs_are_drawn_whole_with_replacement() -> None:
    policy = sampling("epochs", length=99)
    drawn = [policy.places(epoch) for epoch in range(1000)]
    for places in drawn:
        np.testing.assert_array_equal(places, np.flatnonzero(STORED[places[0]] == STORED))
    counts = Counter(int(STORED[places[0]]) for places in drawn)
    assert set(counts) == {0, 1, 3, 4}
    assert min(counts.values()) > 180


def test_epoch_by_epoch_goes_through_the_survivors_in_order() -> None:
    policy = sampling("epoch-by-epoch")
    seen = [STORED[policy.places(epoch)] for epoch in range(8)]
    assert [int(epochs[0]) for epochs in seen] == [0, 1, 3, 4] * 2
    assert [len(epochs) for epochs in seen] == [5, 2, 1, 4] * 2


@pytest.mark.parametrize("length", [1, 5, 12, 31])
def test_shuffled_uses_every_batch_once_before_any_comes_again(length: int) -> None:
    policy = sampling("shuffled", length=length)
    stream = np.concatenate([policy.places(epoch) for epoch in range(60)])
    passes = stream[: len(stream) // 12 * 12].reshape(-1, 12)
    np.testing.assert_array_equal(np.sort(passes, axis=1), np.tile(np.arange(12), (len(passes), 1)))
    assert any((first != second).any() for first, second in pairwise(passes))


def test_stored_goes_round_and_round_in_key_order() -> None:
    policy = sampling("stored")
    stream = np.concatenate([policy.places(epoch) for epoch in range(12)])
    np.testing.assert_array_equal(stream, np.tile(np.arange(12), 5))


@pytest.mark.parametrize("policy", ["batches", "epochs", "shuffled"])
def test_seeds_differ(policy: str) -> None:
    first, second = (sampling(policy, seed=seed) for seed in (1, 2))
    assert any(first.places(e).tolist() != second.places(e).tolist() for e in range(20))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="unknown sampling policy"):
        sampling("luck")
    with pytest.raises(InvalidArgumentError, match="batches_per_epoch >= 1"):
        sampling("batches", length=0)
    with pytest.raises(InvalidArgumentError, match="epochs count from 0"):
        sampling("batches").places(-1)
    with pytest.raises(InvalidArgumentError, match="holds no batches"):
        Sampling(policy="batches", seed=0, epochs=np.zeros(0, np.int32), batches_per_epoch=1)
