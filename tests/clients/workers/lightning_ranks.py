"""Train with Lightning's own DDP launcher and write down what each rank was given.

lightning_ranks.py POOL IMAGES OUT RANKS
"""

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch

from examples.lightning_training import RecountSteps
from lpld_labels.loader import PoolBatch, PoolLoader
from tests.clients.rows import PER_RANK, STOP, open_loader

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "enable_progress_bar": False,
    "logger": False,
}


class Recorder(lightning.LightningModule):
    """Trains a layer of three weights and keeps the row keys of every step, epoch by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.rows: dict[int, list[Any]] = {}

    def training_step(self, batch: PoolBatch, batch_idx: int) -> torch.Tensor:
        self.rows.setdefault(self.current_epoch, []).append(batch.keys.tolist())
        return self.layer(batch.images.mean(dim=(2, 3))).sum()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class MakesItsLoader(Recorder):
    """Makes the loader when the trainer asks for it: after the process group."""

    def __init__(self, pool: str, images: str) -> None:
        super().__init__()
        self.places = pool, images

    def train_dataloader(self) -> PoolLoader:
        return open_loader(*self.places)


class SaveAtStop(lightning.Callback):
    """Saves a checkpoint in the middle of the second epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx + 1) == (1, STOP):
            trainer.save_checkpoint(self.path)


def main() -> None:
    pool, images, out, ranks = sys.argv[1:]
    saved = Path(out, "stopped.ckpt")
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def trainer(*callbacks: Any) -> Any:
        return lightning.Trainer(
            strategy="ddp", devices=int(ranks), max_epochs=3, callbacks=list(callbacks), **QUIET
        )

    # The loader exists before Lightning starts the other ranks and the process group.
    before = Recorder()
    trainer(SaveAtStop(saved)).fit(before, open_loader(pool, images))
    after = MakesItsLoader(pool, images)
    last = trainer(RecountSteps(PER_RANK))
    last.fit(after, ckpt_path=saved, weights_only=True)
    found = {"before": before.rows, "resumed": after.rows}
    Path(out, f"rank{last.global_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
