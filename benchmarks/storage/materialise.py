"""Whole ImageNet-1K IPC 10 pools on disk, 300 epochs and 3 million rows, against their scaled sizes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.common.pickle_layout import save_pickle_batch
from benchmarks.storage.measure import Measurement, write_pool
from benchmarks.storage.spec import UNITS
from lpld_labels import LabelBatch

IPC = 10
Progress = Callable[[str, int, int], None]
"""Called with (layout, batches written, batches in all)."""


def materialise(
    measurement: Measurement, folder: Path, *, epochs: int | None = None, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Write the pool in the original layout, f16 and klt, one after the other, and weigh each.

    Labels are real rows in new orders with noise, so that no two are equal. epochs: fewer than 300, for
    a trial.
    """
    dataset = measurement.dataset
    epochs = epochs or dataset.epochs
    unit = UNITS[dataset.unit]
    images = dataset.images(IPC)
    share = epochs / dataset.epochs

    def batches(layout: str) -> Iterator[LabelBatch]:
        per_epoch = -(-images // dataset.batch_size)
        for number, batch in enumerate(measurement.epochs_of(IPC, epochs), 1):
            yield batch
            if progress is not None:
                progress(layout, number, per_epoch * epochs)

    found = []
    for layout in ("original", "f16", "klt"):
        place = folder / layout
        if layout == "original":
            place.mkdir(parents=True)
            size = sum(
                save_pickle_batch(place / f"batch_{number}.tar", batch, side=dataset.side)
                for number, batch in enumerate(batches(layout))
            )
            scaled = measurement.original(IPC, 1) * share
        else:
            codec = measurement.codec(layout, images * epochs)
            size = write_pool(place, measurement.header(), codec, batches(layout), images)
            scaled = measurement.ours(layout, IPC, 1) * share
        found.append(
            {
                "layout": layout,
                "epochs": epochs,
                "unit": dataset.unit,
                "files": sum(1 for path in place.rglob("*") if path.is_file()),
                "on_disk": round(size / unit, 4),
                "scaled": round(scaled / unit, 4),
                "deviation": round(size / scaled - 1, 4),
            }
        )
        shutil.rmtree(place)
    return found
