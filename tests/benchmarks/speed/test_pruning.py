from pathlib import Path

import pytest

from benchmarks.common.label_source import REAL_LABELS
from benchmarks.speed.pruning import run


@pytest.mark.thorough
def test_a_tiny_run_prunes_and_checks(tmp_path: Path) -> None:
    results = run(REAL_LABELS, tmp_path / "pool", tmp_path, 0.003)
    kept = results["random, batch level"]
    assert kept["batches"] == results["random, epoch level"]["batches"] == results["pool"]["batches"] // 4
    assert kept["bytes"] < results["pool"]["bytes"] / 2
    assert kept["peak_memory_mb"] > kept["memory_before_mb"] > 10
    assert 0 < results["first_batch_seconds"]["0 workers"] < 60
