from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.speed.method import main


def test_quick_run_writes_its_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "--allow-dirty", "--json", str(tmp_path / "out.json")])
    assert "a loop over all classes" in capsys.readouterr().out
    document = json.loads((tmp_path / "out.json").read_text())
    results = document["results"]
    assert [entry["classes"] for entry in results["statistics"]] == [20, 50]
    assert all(entry["times_faster_than_present_classes"] > 0 for entry in results["statistics"])
    assert [entry["class_group"] for entry in results["recovery"]] == [1, 2]
    assert document["circumstances"]["commit"]
