"""Label files made to fill the memory or never to end: refused, each within a few megabytes."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lpld_labels.errors import LabelFileError, LabelSourceError
from lpld_labels.interop.batch_file import read_batch_file
from lpld_labels.interop.image_ids import IdLists
from lpld_labels.interop.import_batches import epoch_sizes
from lpld_labels.interop.import_target import Request
from lpld_labels.interop.layouts import LPQLD, SRE2L, list_label_folder
from lpld_labels.interop.settings import ImportOptions
from lpld_labels.interop.torch_file import MAX_INSTRUCTIONS, MAX_VALUES, read_torch_file
from tests.lpld_labels.interop.label_folders import batch_list
from tests.lpld_labels.interop.test_pickles import name, save
from tests.trust.children import watched

MEGABYTES = 64
SECONDS = 10.0


def shared(depth: int, width: int = 10) -> list[object]:
    """Return lists of the same lists: some hundred bytes, and width ** depth numbers."""
    item: list[object] = [1] * width
    for _ in range(depth - 1):
        item = [item] * width
    return item


def with_item(place: int, item: object) -> bytes:
    """Return the pickle of a list like a batch's, one item of which is another."""
    saved: list[object] = [None] * 6
    saved[place] = item
    return pickle.dumps(saved, 2)


def numpy_type(item: object) -> bytes:
    """Return a pickle that asks for a NumPy type with such a name."""
    return b"\x80\x02" + name("numpy", "dtype") + pickle.dumps(item, 2)[2:-1] + b"\x85R."


BOMBS = {
    "shared lists": pickle.dumps(shared(7), 2),
    "shared lists as a box": with_item(4, [shared(7)] * 4),
    "shared lists as a strength": with_item(3, shared(7)),
    "shared lists as a type": numpy_type(shared(7)),
    "list instructions": b"\x80\x02(" + b"]" * 5_000_000 + b"l.",
    "tuple instructions": b"\x80\x02" + b")" * 5_000_000 + b".",
    "marks": b"\x80\x02" + b"(" * 5_000_000 + b".",
    "notes": b"\x80\x02N" + b"\x94" * 5_000_000 + b".",
    "floats": b"\x80\x02(" + (b"G" + struct.pack(">d", 1.5)) * 600_000 + b"l.",
    "nested tuples": b"\x80\x02N" + b"\x85" * 5_000_000 + b".",
    "long numbers": b"\x80\x02(" + (b"\x8a\xff" + b"\x7f" * 255) * 20_000 + b"l.",
    "a name of megabytes": b"\x80\x02c" + b"a" * 2_000_000 + b"\nb\n.",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_within_its_bounds(tmp_path: Path, bomb: str) -> None:
    path = save(tmp_path / "batch_0.tar", BOMBS[bomb])
    megabytes = MEGABYTES + 4 * path.stat().st_size // 1_000_000
    found = watched(lambda: read_batch_file(path, LPQLD.items) and None, megabytes=megabytes, seconds=SECONDS)
    assert found.kind == "refused", found
    assert len(found.said) < 1000


def test_as_much_as_is_allowed_is_read(tmp_path: Path) -> None:
    numbers = [1] * (MAX_VALUES - 1)
    assert read_torch_file(save(tmp_path / "x.tar", pickle.dumps(numbers, 2))) == numbers
    with pytest.raises(LabelFileError, match=f"more than {MAX_VALUES} values"):
        read_torch_file(save(tmp_path / "x.tar", pickle.dumps([*numbers, 1], 2)))
    program = b"\x80\x02N" + b"\x94" * (MAX_INSTRUCTIONS - 3) + b"."
    assert read_torch_file(save(tmp_path / "x.tar", program)) is None
    with pytest.raises(LabelFileError, match=f"more than {MAX_INSTRUCTIONS} instructions"):
        read_torch_file(save(tmp_path / "x.tar", program[:-1] + b"\x94."))


def saved_batch(path: Path, place: int, item: object) -> Path:
    batch = batch_list(np.arange(8), np.random.default_rng(0))
    batch[place] = item
    torch.save(batch, path)
    return path


@pytest.mark.parametrize(
    "box",
    [
        [[1, 2], [3], 4, 5],
        [[[1]], 2, 3, 4],
        [[1], [2], [3], [4]],
        [0, 0, 10**600, 4],
        [0, 0, 2**16, 4],
        [0, 0, True, 4],
        [0, 0, None, 4],
        [0, 0, torch.zeros(2, dtype=torch.int64), 4],
        [0, 0, 4.0, 4],
        7,
    ],
)
def test_a_strange_box_is_an_error_of_its_file(tmp_path: Path, box: object) -> None:
    with pytest.raises(LabelFileError, match=r"item \[4\] box is wrong") as caught:
        read_batch_file(saved_batch(tmp_path / "batch_0.tar", 4, box), SRE2L.items)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("side", [np.int64(4), torch.tensor(4), torch.tensor([4]), 4])
def test_sides_as_programs_save_them(tmp_path: Path, side: object) -> None:
    mix = read_batch_file(saved_batch(tmp_path / "batch_0.tar", 4, [0, 0, side, side]), SRE2L.items).mix
    assert mix is not None
    assert mix.box == (0, 0, 4, 4)


@pytest.mark.parametrize("strength", [10**600, [[1], 2], "x", float("nan"), 1.5])
def test_a_strange_strength_is_an_error_of_its_file(tmp_path: Path, strength: object) -> None:
    with pytest.raises(LabelFileError, match=r"item \[3\] strength is wrong"):
        read_batch_file(saved_batch(tmp_path / "batch_0.tar", 3, strength), SRE2L.items)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "batch_0.tar")
    found = watched(lambda: read_torch_file(tmp_path / "batch_0.tar"), megabytes=MEGABYTES, seconds=SECONDS)
    assert found.kind == "refused"
    assert "it is a pipe" in found.said


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
    ],
)
def test_image_ids_that_are_no_ids(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "ids.json"
    path.write_text(text)
    with pytest.raises(LabelSourceError, match=problem):
        IdLists(path)[0]


def test_image_ids_from_a_pipe_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ids.json")
    found = watched(lambda: IdLists(tmp_path / "ids.json"), megabytes=MEGABYTES, seconds=SECONDS)
    assert found.kind == "refused"
    assert "it is a pipe" in found.said


def test_image_ids_that_are_cut_off_after_opening(tmp_path: Path) -> None:
    path = tmp_path / "ids.json"
    path.write_text(json.dumps({str(number): list(range(5000)) for number in range(4)}))
    ids = IdLists(path)
    path.write_text("{}")
    assert ids[3].tolist() == list(range(5000))


def test_lists_in_any_order_with_spaces(tmp_path: Path) -> None:
    path = tmp_path / "ids.json"
    path.write_text(' {"0" : [1, 2,\n 3 ],  "12": [] , "5":[2147483646]  }\n')
    ids = IdLists(path)
    assert ids.numbers == [0, 5, 12]
    assert [ids[number].tolist() for number in ids.numbers] == [[1, 2, 3], [2147483646], []]


def test_a_lone_far_epoch_is_not_planned(tmp_path: Path) -> None:
    for epoch in (0, 999_999_999):
        saved_batch_folder = tmp_path / f"epoch_{epoch}"
        saved_batch_folder.mkdir()
        (saved_batch_folder / "batch_0.tar").touch()
    images: Any = None
    request = Request(
        layout=SRE2L, folder=list_label_folder(tmp_path), images=images, options=ImportOptions()
    )

    def plan() -> None:
        epoch_sizes(request, None)  # type: ignore[arg-type]  # refused before it is used

    found = watched(plan, megabytes=MEGABYTES, seconds=SECONDS)
    assert found.kind == "refused"
    assert "epoch 999999999 is far beyond the 2 epochs" in found.said


def test_many_lists_of_ids_take_little(tmp_path: Path) -> None:
    path = tmp_path / "ids.json"
    path.write_text(json.dumps({str(number): [] for number in range(100_000)}))
    found = watched(lambda: IdLists(path) and None, megabytes=MEGABYTES, seconds=SECONDS)
    assert found.kind == "well", found
