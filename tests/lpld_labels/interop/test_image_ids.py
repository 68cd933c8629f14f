import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpld_labels.errors import InvalidArgumentError, LabelSourceError
from lpld_labels.interop.image_ids import MAX_IMAGES, IdLists, SampledOrders
from tests.trust.children import watched


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 2000), seed=st.integers(0, 2**63 - 1))
def test_orders_of_both_eras_are_pytorchs(count: int, seed: int) -> None:
    new, old = (torch.Generator().manual_seed(seed) for _ in range(2))
    sampler = torch.utils.data.RandomSampler(range(count), generator=new)
    ours = SampledOrders(count, era="new", seed=seed)
    older = SampledOrders(count, era="old", seed=seed)
    for epoch in range(3):
        assert ours[epoch].tolist() == list(sampler)
        assert older[epoch].tolist() == torch.randperm(count, generator=old).tolist()


def test_epochs_in_any_turn() -> None:
    orders = [SampledOrders(20)[epoch].tolist() for epoch in range(5)]
    found = SampledOrders(20)
    for epoch in (0, 3, 3, 1, 4, 0):
        assert found[epoch].tolist() == orders[epoch]


@pytest.mark.parametrize("count", [0, -1, MAX_IMAGES + 1])
def test_counts_it_cannot_do(count: int) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot reproduce the sampling order"):
        SampledOrders(count)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"0": [' + "9" * 5000 + "]}", "image ids of '0' are damaged"),
        ('{"0": [1], "0": [2]}', "image ids are damaged: a number occurs twice"),
        ('{"0": [1,,2]}', "image ids are damaged"),
        ('{"0": [[1]]}', "image ids are damaged"),
        ('{"0": [-1]}', "image ids of '0' are damaged"),
        ('{"a]": 1}', "image ids are damaged"),
        ('{"0": [99999999999]}', "image ids of '0' are damaged"),
        ("[" * 100_000, "image ids are damaged"),
        ('{"0": [1]', "image ids are damaged"),
        ('{"0": [1]}, {"1": [1]}', "image ids are damaged"),
        (',"0": [1]}', "image ids are damaged"),
        ("", "image ids are damaged"),
        ("[]", "image ids are damaged"),
    ],
    ids=range(13),
)
def test_lists_that_are_no_ids(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "ids.json").write_text(text)
    with pytest.raises(LabelSourceError, match=problem):
        IdLists(tmp_path / "ids.json")[0]


def test_a_pipe_is_not_waited_for_and_many_lists_take_little(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    found = watched(lambda: IdLists(tmp_path / "pipe.json"), megabytes=64, seconds=10.0)
    assert (found.kind, "it is a pipe" in found.said) == ("refused", True), found
    (tmp_path / "many.json").write_text(json.dumps({str(number): [] for number in range(100_000)}))
    found = watched(lambda: IdLists(tmp_path / "many.json") and None, megabytes=64, seconds=10.0)
    assert found.kind == "well", found


def test_lists_are_read_in_any_order_with_spaces_and_once(tmp_path: Path) -> None:
    path = tmp_path / "ids.json"
    path.write_text(' {"0" : [1, 2,\n 3 ],  "12": [] , "5":[2147483646]  }\n')
    ids = IdLists(path)
    path.write_text("{}")
    assert ids.numbers == [0, 5, 12]
    assert [ids[number].tolist() for number in ids.numbers] == [[1, 2, 3], [2147483646], []]
