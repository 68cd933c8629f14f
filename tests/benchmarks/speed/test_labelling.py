from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.speed import labelling
from benchmarks.speed.labelling import MemoryUse


def test_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.json"
    monkeypatch.setattr(
        sys, "argv", ["relabel_speed", "--quick", "--allow-dirty", "--threads", "1", "--json", str(out)]
    )
    labelling.main()
    results = json.loads(out.read_text())["results"]
    assert results["labelling"]["images_per_build"] == 96
    # A tiny run says nothing about speed; that it checked and timed both sides is what is tested.
    assert results["labelling"]["share_of_teacher"]["median"] > 0
    assert results["memory"]["epochs"] == 8
    assert results["apply"]["speed_up"] > 0


def test_growth_compares_the_last_quarter_with_the_second() -> None:
    assert MemoryUse(megabytes=[9.0, 9, 5, 5, 6, 6, 7, 7]).growth == 2
    assert MemoryUse(megabytes=[1.0, 5, 5, 5]).growth == 0
