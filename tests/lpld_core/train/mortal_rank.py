"""A process of ``lpld-labels`` that saves after every step and dies: mortal_rank.py RANK STEP WORDS...

The process of this rank is killed as it begins the step of this number, counted over all epochs of its life.
"""

import os
import signal
import sys
from typing import Any

import torch
from lpld_cli.main import main as command_line

from lpld_core import unfinished
from lpld_core.train.trainer import Trainer


def main() -> None:
    rank, last = int(sys.argv[1]), int(sys.argv[2])
    del sys.argv[1:3]
    unfinished.SAVE_SECONDS = 0.0
    step = Trainer._step
    begun: list[int] = []

    def mortal(self: Trainer, *arguments: Any) -> torch.Tensor:
        begun.append(1)
        if self.ranks.rank == rank and len(begun) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, *arguments)

    Trainer._step = mortal  # type: ignore[method-assign, assignment]
    command_line()


if __name__ == "__main__":
    main()
