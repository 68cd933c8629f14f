"""Train with Lightning's own DDP launcher and write down what each rank was given.

lightning_ranks.py POOL IMAGES OUT RANKS [CHECKPOINT]
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning

from examples.lightning_training import RecountSteps
from lpld_labels.loader import PoolLoader
from tests.clients.recorder import QUIET, Recorder, SaveAtStop
from tests.clients.rows import PER_RANK, open_loader


class MakesItsLoader(Recorder):
    """Makes the loader when the trainer asks for it: after the process group."""

    def __init__(self, pool: str, images: str) -> None:
        super().__init__()
        self.places = pool, images

    def train_dataloader(self) -> PoolLoader:
        return open_loader(*self.places)


def main() -> None:
    pool, images, out, ranks, *checkpoints = sys.argv[1:]
    directory = Path(out)
    saved = directory / "stopped.ckpt"
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def trainer(*callbacks: Any) -> Any:
        return lightning.Trainer(
            strategy="ddp", devices=int(ranks), max_epochs=3, callbacks=list(callbacks), **QUIET
        )

    found: dict[str, Any] = {}
    if not checkpoints:
        # The loader exists before Lightning starts the other ranks and the process group.
        before = Recorder()
        trainer(SaveAtStop(saved)).fit(before, open_loader(pool, images))
        found["before"] = before.rows
    after = MakesItsLoader(pool, images)
    last = trainer(RecountSteps(PER_RANK))
    last.fit(after, ckpt_path=checkpoints[0] if checkpoints else saved, weights_only=True)
    found["resumed"] = after.rows
    (directory / f"rank{last.global_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
