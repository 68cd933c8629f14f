"""Small folders in the layouts of the authors' programs, one for each program that wrote a reference folder.

The authors' own files are imported too where they are at hand; these are there everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.lpld_labels.interop.label_folders import batch_list, sampler, write_images

COUNT = 24
"""Images: whole batches of 8, and an incomplete third one of 10."""
LARGE, TINY = 224, 64
TOP_K = 50
PRUNED = 5
"""The flat folder's batch that is left out: the last of its second epoch."""


def write_reference_images(folder: Path, name: str) -> Path:
    """Write the images of a folder: "in1k" or "tiny"."""
    return write_images(folder, COUNT, size=TINY if name == "tiny" else LARGE)


def write_sre2l_mixup(folder: Path) -> None:
    _write_epochs(folder, 2, 10, lambda ids, rng: batch_list(ids, rng, mix="mixup", size=LARGE, classes=1000))


def write_lpld_in1k(folder: Path) -> None:
    ids = _write_epochs(folder, 4, 10, lambda ids, rng: batch_list(ids, rng, size=LARGE, classes=1000))
    (folder / "sampler_indices_epoch.json").write_text(json.dumps(ids))


def write_lpld_tiny(folder: Path) -> None:
    ids = _write_epochs(
        folder, 4, 10, lambda ids, rng: batch_list(ids, rng, mix="none", size=TINY, classes=200)
    )
    (folder / "sampler_indices_epoch.json").write_text(json.dumps(ids))


def write_lpld_in21k(folder: Path) -> None:
    """Cut-out takes the place of the flips: centre, sides, colour."""

    def content(ids: np.ndarray[Any, Any], rng: np.random.Generator) -> list[Any]:
        saved = batch_list(ids, rng, mix="none", size=LARGE, classes=10450)
        centres = rng.integers(0, LARGE, (len(ids), 2)) / LARGE
        colours = rng.integers(0, 256, (len(ids), 3))
        saved[1] = torch.from_numpy(
            np.concatenate([centres, np.full((len(ids), 2), 0.5), colours], 1)
        ).float()
        return saved

    ids = _write_epochs(folder, 2, 8, content)
    (folder / "sampler_indices_epoch.json").write_text(json.dumps(ids))


def write_lpqld_in1k_k50(folder: Path) -> None:
    """A flat folder in few bits: float16 crops, slots and box as bytes, the largest logits with classes."""
    rng = np.random.default_rng(0)
    draw = sampler(COUNT)
    epochs = [draw() for _ in range(3)]
    drawn = [ids[first : first + 8] for ids in epochs for first in range(0, COUNT, 8)]
    del drawn[PRUNED]
    stored = {}
    folder.mkdir(parents=True)
    for number, ids in enumerate(drawn):
        coords, flips, partner, strength, box, logits = batch_list(ids, rng, size=LARGE, classes=1000)
        values, classes = logits.float().topk(TOP_K, dim=1)
        edges = [torch.tensor(int(edge), dtype=torch.uint8) for edge in box]
        saved = [coords.half(), flips, partner.byte(), strength, edges, values.half(), classes.short()]
        torch.save(saved, folder / f"batch_{number}.tar")
        stored[str(number)] = ids.tolist()
    (folder / "sampler_indices_batch.json").write_text(json.dumps(stored))


def _write_epochs(
    folder: Path,
    epochs: int,
    batch: int,
    content: Callable[[np.ndarray[Any, Any], np.random.Generator], list[Any]],
) -> dict[str, list[int]]:
    """Write epoch_N/batch_N.tar and return the image ids of every epoch."""
    rng = np.random.default_rng(0)
    draw = sampler(COUNT)
    stored = {}
    for epoch in range(epochs):
        ids = draw()
        stored[str(epoch)] = ids.tolist()
        (folder / f"epoch_{epoch}").mkdir(parents=True)
        for number, first in enumerate(range(0, COUNT, batch)):
            saved = content(ids[first : first + batch], rng)
            torch.save(saved, folder / f"epoch_{epoch}" / f"batch_{number}.tar")
    return stored


WRITERS: Mapping[str, Callable[[Path], None]] = {
    "sre2l_mixup": write_sre2l_mixup,
    "lpld_in1k": write_lpld_in1k,
    "lpld_tiny": write_lpld_tiny,
    "lpld_in21k": write_lpld_in21k,
    "lpqld_in1k_k50": write_lpqld_in1k_k50,
}
