"""Training runs that several processes do together and one process alone, for comparison.

As a script, one of several processes that train all cases together: rank_cases.py PLACE.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lpld_core.train.evaluate import ValidationSet
from lpld_core.train.ranks import ALONE, Ranks, joined_ranks, leave
from lpld_core.train.settings import TrainSettings
from lpld_core.train.student import TrainResult, train_student
from lpld_labels.loader.pool_loader import TrainingSteps
from lpld_labels.pool.reader import PoolReader
from tests.lpld_core.image_folders import SIDE

Rows = list[list[list[int]]]
"""Of each step, the keys (epoch, batch, slot) of its rows."""

_EPOCHS: dict[str, Any] = {"epochs": 3, "learning_rate": 0.01, "evaluate_every": 1}
_PLAIN = "tests.lpld_core.networks:double_net"
_BATCHNORM = "tests.lpld_core.networks:double_batchnorm_net"
CASES = {
    # Steps are label batches.
    "label batches": TrainSettings(student=_PLAIN, **_EPOCHS),
    "cut": TrainSettings(
        student=_PLAIN,
        batch_size=24,
        accumulate=3,
        optimizer="sgd",
        ema=0.9,
        student_temperature="calibrated",
        **_EPOCHS,
    ),
    "true classes": TrainSettings(student=_PLAIN, batch_size=12, loss="mse+gt", **_EPOCHS),
    "phases": TrainSettings(student=_PLAIN, batch_size=12, phases="soft:1,hard:1,soft:1", **_EPOCHS),
    # It has parameters that are not used, too.
    "batchnorm": TrainSettings(student=_BATCHNORM, **_EPOCHS),
}


def train(place: Path, name: str, out: Path, ranks: Ranks = ALONE) -> TrainResult:
    validation = ValidationSet(place / "images", size=(SIDE, SIDE))
    with PoolReader(place / "pool") as pool:
        return train_student(pool, place / "images", out, CASES[name], validation=validation, ranks=ranks)


@contextmanager
def recorded_rows() -> Iterator[Rows]:
    """Note which rows this process takes, step by step."""
    rows: Rows = []
    real = TrainingSteps.__getitem__

    def noting(self: TrainingSteps, step: Any) -> Any:
        batch = real(self, step)
        rows.append(batch.keys.tolist())
        return batch

    TrainingSteps.__getitem__ = noting  # type: ignore[method-assign]
    try:
        yield rows
    finally:
        TrainingSteps.__getitem__ = real  # type: ignore[method-assign]


def main() -> None:
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    rows = {}
    with joined_ranks("cpu") as ranks:
        for name in CASES:
            with recorded_rows() as rows[name]:
                train(place, name, place / "ranks" / name, ranks)
        (place / f"rank{ranks.rank}.json").write_text(json.dumps(rows))
    leave(0)


if __name__ == "__main__":
    main()
