"""A Lightning module that notes the rows it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch

from lpld_labels.loader import PoolBatch
from tests.clients.rows import STOP

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


class SaveAtStop(lightning.Callback):
    """Saves a checkpoint in the middle of the second epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx + 1) == (1, STOP):
            trainer.save_checkpoint(self.path)
