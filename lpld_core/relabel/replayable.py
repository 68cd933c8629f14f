"""Pools that other programs can replay once they are exported.

SRe2L's and LPLD's trainers draw image ids again with PyTorch's RandomSampler, seed 42, and resize with
Pillow. A pool whose images come in that order and were resized so is replayed by them exactly, pixel by
pixel. Crops, flips and mixing come from the pool's own seed as ever: those are stored in the folder.
"""

from __future__ import annotations

from typing import Literal

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import Augmentation

Replayer = Literal["sre2l", "lpld"]
REPLAYERS: tuple[Replayer, ...] = ("sre2l", "lpld")
PILLOW = "pil"


def check_replayable(program: Replayer, augmentation: Augmentation, *, ratio: float) -> None:
    """Refuse settings whose export the program could not replay."""
    cut_out = augmentation.cutout_fraction is not None
    problems = {
        f"resize by {augmentation.resize}, the program uses Pillow": augmentation.resize != PILLOW,
        "shuffled patches, which its folders cannot hold": augmentation.patch_grid is not None,
        "views that are not square": augmentation.output_height != augmentation.output_width,
        "cut-outs, which it does not know": cut_out and program == "sre2l",
        "cut-outs with flips, which its folders cannot hold": cut_out
        and augmentation.flip_probability is not None,
        "a pruned pool, whose image ids its folders do not store": ratio != 1 and program == "sre2l",
    }
    for problem, is_so in problems.items():
        if is_so:
            raise InvalidArgumentError(f"{program} cannot replay {problem}", where="--replayable-by")
