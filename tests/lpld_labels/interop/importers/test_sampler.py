"""The order of PyTorch's RandomSampler, drawn by PyTorch and by us."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.interop.sampler import MAX_IMAGES, RandomOrder, epoch_orders
from tests.lpld_labels.interop.conftest import Reference


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 2000), seed=st.integers(0, 2**63 - 1))
def test_new_era_is_random_sampler(count: int, seed: int) -> None:
    generator = torch.Generator()
    generator.manual_seed(seed)
    sampler = torch.utils.data.RandomSampler(range(count), generator=generator)
    for order in itertools.islice(epoch_orders(count, era="new", seed=seed), 3):
        assert order.tolist() == list(sampler)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 2000), seed=st.integers(0, 2**63 - 1))
def test_old_era_draws_one_permutation_an_epoch(count: int, seed: int) -> None:
    generator = torch.Generator()
    generator.manual_seed(seed)
    for order in itertools.islice(epoch_orders(count, era="old", seed=seed), 3):
        assert order.tolist() == torch.randperm(count, generator=generator).tolist()


def test_skipping_is_drawing_without_looking() -> None:
    one, other = RandomOrder(500), RandomOrder(500)
    one.next()
    other.skip()
    assert np.array_equal(one.next(), other.next())


def test_the_ids_that_lpld_stored(reference: Callable[[str], Reference]) -> None:
    stored = json.loads((reference("lpld_in1k").labels / "sampler_indices_epoch.json").read_text())
    count = len(stored["0"])
    for epoch, order in zip(range(4), epoch_orders(count, era="new"), strict=False):
        assert stored[str(epoch)] == order.tolist()


@pytest.mark.parametrize("count", [0, -1, MAX_IMAGES + 1])
def test_counts_it_cannot_do(count: int) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot rebuild the order"):
        RandomOrder(count)
