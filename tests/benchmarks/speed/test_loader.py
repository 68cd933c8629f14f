"""A tiny run of benchmarks/speed/loader.py: it measures what it says, and checks it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.common.photos import photo_folder
from benchmarks.speed.loader import QUICK, Source, build_pool, run, same_batches
from lpld_labels.loader import pool_loader


def test_a_tiny_run_measures_everything() -> None:
    results = run(Source(), QUICK, workers=(0, 1))
    assert set(results["end_to_end"]) == {f"{size} px, {n} workers" for size in (224, 64) for n in (0, 1)}
    for row in results["end_to_end"].values():
        assert row["speedup"] > 0
        assert row["agreement"]["mean_grey_levels"] < 0.5
    labels = results["random_labels"]
    assert {"torch.load per batch", "lpld-labels f16", "lpld-labels f16:plain"} <= set(labels)
    assert labels["lpld-labels int8"]["bytes_per_batch"] < labels["lpld-labels f16"]["bytes_per_batch"]
    assert all(row["per_s"] > 0 for row in labels.values())


def test_loaders_that_disagree_are_noticed(tmp_path: Path) -> None:
    images = photo_folder(tmp_path / "images", side=64, count=16)
    pool = build_pool(Source(), tmp_path / "pool", images, 64, replace(QUICK, images=16))
    loader = pool_loader(pool, images, sampling="stored")
    batches = [(batch.images.contiguous(), batch.labels) for batch in loader]
    loader.set_epoch(0)
    assert same_batches(loader, iter(batches))["mean_grey_levels"] == 0
    loader.set_epoch(0)
    with pytest.raises(RuntimeError, match="disagree about labels"):
        same_batches(loader, iter([(images, labels + 1) for images, labels in batches]))
    loader.set_epoch(0)
    with pytest.raises(RuntimeError, match="disagree about images"):
        same_batches(loader, iter([(torch.roll(images, 9, 3), labels) for images, labels in batches]))
