"""A tiny run of benchmarks/speed/read_write.py, and the size promise on real logits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common.label_source import real_batches
from benchmarks.speed.read_write import on_disk, write_all


@pytest.mark.timing
def test_it_runs_and_reports(tmp_path: Path, project: Path) -> None:
    report = tmp_path / "report.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.speed.read_write",
        "--quick",
        "--allow-dirty",
        "--json",
        str(report),
    ]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    document = json.loads(report.read_text())
    layouts = document["results"]["layouts"]
    assert {"pickle", "f16", "f16:plain", "int8"} <= set(layouts)
    for layout in layouts.values():
        assert layout["random_read"]["median_s"] > 0
    assert document["circumstances"]["versions"]["pyarrow"]
    # No target is tested on a shared machine, but something ten times too slow is a bug anywhere.
    assert layouts["f16"]["random_read_ratio"] < 10
    assert document["results"]["open"]["median_s"] < 0.1


def test_real_logits_take_at_most_087_of_the_pickle_layout(tmp_path: Path) -> None:
    write_all(tmp_path, list(real_batches()))
    pickled, files = on_disk(tmp_path, "pickle")
    compact, _ = on_disk(tmp_path, "f16")
    assert files == 42
    assert compact <= 0.87 * pickled
