from pathlib import Path

import numpy as np
import pytest
import torch

from lpld_labels.errors import LabelFileError
from lpld_labels.interop.batch_file import read_batch_file
from lpld_labels.interop.layouts import SRE2L
from tests.lpld_labels.interop.label_folders import batch_list


def saved_batch(path: Path, place: int, item: object) -> Path:
    batch = batch_list(np.arange(8), np.random.default_rng(0))
    batch[place] = item(batch[place]) if callable(item) else item
    torch.save(batch, path)
    return path


STRENGTHS: list[object] = [10**600, [[1], 2], "x", float("nan"), 1.5]
BOXES: list[object] = [
    [[1, 2], [3], 4, 5], [[[1]], 2, 3, 4], [[1], [2], [3], [4]], [0, 0, 10**600, 4], [0, 0, 2**16, 4],
    [0, 0, True, 4], [0, 0, None, 4], [0, 0, torch.zeros(2, dtype=torch.int64), 4], [0, 0, 4.0, 4], 7,
    [5, 5, 2, 9], [5, 5, 2],
]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "item", "message"),
    [
        *((3, strength, r"item \[3\] strength is wrong") for strength in STRENGTHS),
        *((4, box, r"item \[4\] box is wrong") for box in BOXES),
        (0, lambda coords: coords * 2, r"\[0\] coords"),
        (0, lambda coords: coords * float("nan"), r"\[0\] coords"),
        (1, lambda flips: flips.int(), r"item \[1\]"),
        (2, lambda partners: partners + 1, r"\[2\] partners"),
        (5, lambda labels: labels.double(), r"\[5\] labels"),
    ],
)
def test_strange_item_names_its_file(tmp_path: Path, place: int, item: object, message: str) -> None:
    with pytest.raises(LabelFileError, match=message) as caught:
        read_batch_file(saved_batch(tmp_path / "batch_0.tar", place, item), SRE2L.items)
    assert "batch_0.tar" in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("side", [np.int64(4), torch.tensor(4), torch.tensor([4]), 4])
def test_sides_as_programs_save_them(tmp_path: Path, side: object) -> None:
    mix = read_batch_file(saved_batch(tmp_path / "batch_0.tar", 4, [0, 0, side, side]), SRE2L.items).mix
    assert mix is not None
    assert mix.box == (0, 0, 4, 4)
