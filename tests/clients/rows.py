"""What the clients' tests play: one small pool, and the rows that one process plays of it."""

from pathlib import Path
from typing import Any

from lpld_labels.loader import PoolLoader, pool_loader

PER_RANK = 5
STOP = 3
"""Steps of the second epoch after which runs of two ranks are saved."""
Rows = list[list[int]]


def open_loader(pool: str | Path, images: str | Path, **options: Any) -> PoolLoader:
    """Open the loader that every client trains from: 96 rows in each epoch."""
    return pool_loader(
        pool,
        images,
        **{"batch_size": PER_RANK, "sampling": "shuffled", "batches_per_epoch": 6, **options},
        equal_epochs=True,
    )


def rows_of(loader: PoolLoader) -> list[Rows]:
    """Play an epoch and return the rows of each step."""
    return [batch.keys.tolist() for batch in loader]


def epoch_alone(pool: Path, images: Path, epoch: int, ranks: int) -> list[Rows]:
    """Return an epoch's steps as one process with the global batch plays them."""
    loader = open_loader(pool, images, batch_size=PER_RANK * ranks)
    loader.set_epoch(epoch)
    return rows_of(loader)


def together(ranks: list[list[Rows]]) -> list[Rows]:
    """Join what the ranks played, step by step."""
    return [[row for part in step for row in part] for step in zip(*ranks, strict=True)]


def in_steps(rows: Rows, ranks: int) -> list[Rows]:
    """Cut what is left of an epoch into the steps of a number of ranks, as the loader promises."""
    size = PER_RANK * ranks
    steps = [rows[first : first + size] for first in range(0, len(rows), size)]
    even = [step[: len(step) // ranks * ranks] for step in steps]
    return [step for step in even if step]
