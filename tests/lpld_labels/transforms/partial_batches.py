"""Batches for tests of pruning: epochs whose last batch is a short one."""

from __future__ import annotations

from typing import Any

from tests.factories import make_batch

EPOCHS, PER_EPOCH, SMALL = 12, 6, 5


def with_partials(**options: Any) -> list[Any]:
    """Epochs of five batches of 8 rows and a last one of 5."""
    return [
        make_batch(e, b, rows=8 if b < PER_EPOCH - 1 else SMALL, **options)
        for e in range(EPOCHS)
        for b in range(PER_EPOCH)
    ]
