"""The picture of what methods recovered: the same classes of each, one below the other."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.accuracy.tiny100.sheet import CLASSES, draw_sheet

COLOURS = {"lpld-ipc2-1-plain": (250, 0, 0), "sre2l-ipc2-1-plain": (0, 0, 250)}


def test_every_other_row_is_of_the_other_method(tmp_path: Path) -> None:
    for folder, colour in COLOURS.items():
        for name in "abcdefg":
            (tmp_path / folder / name).mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (8, 8), colour).save(tmp_path / folder / name / f"{number}.png")
        # A folder has files of its own too.
        (tmp_path / folder / "recover.json").write_text("{}")
    draw_sheet([tmp_path / folder for folder in COLOURS], tmp_path / "new" / "sheet.png")
    pixels = np.asarray(Image.open(tmp_path / "new" / "sheet.png").convert("RGB")).astype(int)
    red = (pixels[:, :, 0] - pixels[:, :, 2] > 200).any(axis=1)
    blue = (pixels[:, :, 2] - pixels[:, :, 0] > 200).any(axis=1)
    order = [colour for colour in np.where(red, "red", np.where(blue, "blue", "none")) if colour != "none"]
    changes = [order[0], *(b for a, b in itertools.pairwise(order) if a != b)]
    assert changes == ["red", "blue"] * CLASSES
