"""A tiny run of benchmarks/speed/loader.py: it measures what it says, and checks it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.common.photos import photo_folder
from benchmarks.speed import label_peers
from benchmarks.speed.loader import QUICK, Source, build_pool, random_labels, report, run, same_batches
from lpld_labels import LabelBatch
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


def test_a_peer_that_fails_is_named_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(folder: Path, batches: list[LabelBatch]) -> label_peers.Read:
        raise ModuleNotFoundError("No module named 'peer'")

    def with_other_labels(folder: Path, batches: list[LabelBatch]) -> label_peers.Read:
        return lambda number: {"labels": batches[number].labels + np.float16(1)}

    peers = {"missing": missing, "labels": with_other_labels, "torch": label_peers.torch_files}
    monkeypatch.setattr(label_peers, "PEERS", peers)
    rows, failed = random_labels(Source(), tmp_path, QUICK)
    assert set(rows) == {"torch", *(f"lpld-labels {form}" for form in ("f16", "f16:plain", "int8"))}
    assert failed == {
        "missing": "ModuleNotFoundError: No module named 'peer'",
        "labels": "RuntimeError: labels of batch 0 differ from those written",
    }
    report({"end_to_end": {}, "random_labels": rows, "failed_peers": failed})
    assert "not measured: missing" in capsys.readouterr().out


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
