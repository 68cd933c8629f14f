"""The order of PyTorch's RandomSampler, drawn by PyTorch and by us."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.interop.image_ids import MAX_IMAGES, SampledOrders
from tests.lpld_labels.interop.conftest import Reference


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 2000), seed=st.integers(0, 2**63 - 1))
def test_new_era_is_random_sampler(count: int, seed: int) -> None:
    generator = torch.Generator()
    generator.manual_seed(seed)
    sampler = torch.utils.data.RandomSampler(range(count), generator=generator)
    orders = SampledOrders(count, era="new", seed=seed)
    for epoch in range(3):
        assert orders[epoch].tolist() == list(sampler)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 2000), seed=st.integers(0, 2**63 - 1))
def test_old_era_draws_one_permutation_an_epoch(count: int, seed: int) -> None:
    generator = torch.Generator()
    generator.manual_seed(seed)
    orders = SampledOrders(count, era="old", seed=seed)
    for epoch in range(3):
        assert orders[epoch].tolist() == torch.randperm(count, generator=generator).tolist()


def test_the_ids_that_lpld_stored(reference: Callable[[str], Reference]) -> None:
    stored = json.loads((reference("lpld_in1k").labels / "sampler_indices_epoch.json").read_text())
    orders = SampledOrders(len(stored["0"]), era="new")
    for epoch in range(4):
        assert stored[str(epoch)] == orders[epoch].tolist()


def test_epochs_in_any_turn() -> None:
    orders = [SampledOrders(20)[epoch].tolist() for epoch in range(5)]
    found = SampledOrders(20)
    for epoch in (0, 3, 3, 1, 4, 0):
        assert found[epoch].tolist() == orders[epoch]


@pytest.mark.parametrize("count", [0, -1, MAX_IMAGES + 1])
def test_counts_it_cannot_do(count: int) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot rebuild the order"):
        SampledOrders(count)
