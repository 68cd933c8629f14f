"""Figures of campaigns: no case is counted twice."""

import json
from pathlib import Path

import pytest

from tests.trust import figures


@pytest.mark.parametrize(
    ("runs", "kept"),
    [
        # (seed, first, cases), then (first, cases) of what is left
        ([(0, 0, 20), (0, 20, 20), (0, 40, 20)], [(0, 20), (20, 20), (40, 20)]),
        ([(0, 0, 20), (0, 20, 20), (0, 40, 20), (0, 10, 30)], [(10, 30), (40, 20)]),
        ([(0, 40, 20), (0, 40, 5)], [(40, 5)]),
        # Cases of another seed are others.
        ([(0, 0, 100), (1, 50, 100)], [(0, 100), (50, 100)]),
        # Parts that are dealt out ("of") are known by their number.
        ([(0, 1, 500, 2), (0, 2, 500, 2)], [(1, 500), (2, 500)]),
        ([(0, 1, 500, 2), (0, 2, 500, 2), (0, 0, 900, 1)], [(0, 900)]),
    ],
)
def test_what_is_run_again_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list[tuple[int, ...]], kept: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(figures, "FILE", tmp_path / "figures.json")
    for seed, first, cases, *of in runs:
        figures.record("damage", seed, first, {"cases": cases, **({"of": of[0]} if of else {})})
    parts = json.loads((tmp_path / "figures.json").read_text())["damage"]
    assert [(part["first"], part["cases"]) for part in parts] == kept
