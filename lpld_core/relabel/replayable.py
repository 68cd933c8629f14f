"""Pools that other programs can replay once they are exported.

SRe2L's and LPLD's trainers draw image ids again with PyTorch's RandomSampler, seed 42, and resize with
Pillow. A pool whose images come in that order and were resized so is replayed by them exactly, pixel by
pixel. Crops, flips and mixing come from the pool's own seed as ever: those are stored in the folder.
"""

from __future__ import annotations

from lpld_core.relabel.settings import Replayer
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import Augmentation

PILLOW = "pil"


def check_replayable(program: Replayer, augmentation: Augmentation, *, ratio: float) -> None:
    """Refuse settings whose export the program could not replay."""
    problems = {
        f"resize by {augmentation.resize}, the program uses Pillow": augmentation.resize != PILLOW,
        "shuffled patches, which its folders cannot hold": augmentation.patch_grid is not None,
        "views that are not square": augmentation.output_height != augmentation.output_width,
        # SRe2L knows none; LPLD's for ImageNet-21K cover one more row and column than a build paints.
        "cut-outs, which it paints otherwise or not at all": augmentation.cutout_fraction is not None,
        "a pruned pool, whose image ids its folders do not store": ratio != 1 and program == "sre2l",
    }
    for problem, is_so in problems.items():
        if is_so:
            raise InvalidArgumentError(f"{program} cannot replay {problem}", where="--replayable-by")
