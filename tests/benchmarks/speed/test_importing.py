"""A tiny run of benchmarks/speed/importing.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timing
def test_it_runs_and_reports(tmp_path: Path, project: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks.speed.importing", "--quick", "--allow-dirty"]
    command += ["--json", str(report)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    results = json.loads(report.read_text())["results"]
    assert results["batches"] == 6
    assert results["import_jobs_1"]["mb_per_core_s"] > 0
    # Twice as many batches may not take twice the memory.
    assert results["long"]["peak_memory_mb"] < 1.3 * results["import_jobs_1"]["peak_memory_mb"]
    assert results["bytes_ratio"] < 1
