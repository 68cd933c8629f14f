from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.speed import augmenting


def test_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "argv", ["apply_speed", "--quick", "--allow-dirty", "--json", str(tmp_path / "out.json")]
    )
    augmenting.main()
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["benchmark"] == "apply_speed"
    assert [result["image_size"] for result in document["results"]] == [224, 64]
    for result in document["results"]:
        assert result["images_per_batch"] == 12
        # A tiny run says nothing about speed; that it checked and timed every way is what is tested.
        assert result["speed_up"] > 0
        assert set(result["ways"]) == {
            "PIL from files",
            "PIL from decoded images",
            "replay, fresh memory",
            "replay",
        }
