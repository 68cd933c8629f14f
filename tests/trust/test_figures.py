"""Figures of campaigns: no case is counted twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trust import figures


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(figures, "FILE", tmp_path / "figures.json")
    return tmp_path / "figures.json"


def parts(file: Path) -> list[tuple[int, int]]:
    return [(part["first"], part["cases"]) for part in json.loads(file.read_text())["damage"]]


def test_a_part_that_was_run_again_within_a_larger_one_goes(file: Path) -> None:
    for first in (0, 20, 40):
        figures.record("damage", 0, first, {"cases": 20})
    assert parts(file) == [(0, 20), (20, 20), (40, 20)]
    figures.record("damage", 0, 10, {"cases": 30})
    assert parts(file) == [(10, 30), (40, 20)]
    figures.record("damage", 0, 40, {"cases": 5})
    assert parts(file) == [(10, 30), (40, 5)]


def test_cases_of_another_seed_are_others(file: Path) -> None:
    figures.record("damage", 0, 0, {"cases": 100})
    figures.record("damage", 1, 50, {"cases": 100})
    assert parts(file) == [(0, 100), (50, 100)]


def test_parts_that_are_dealt_out_are_known_by_their_number(file: Path) -> None:
    figures.record("damage", 0, 1, {"cases": 500, "of": 2})
    figures.record("damage", 0, 2, {"cases": 500, "of": 2})
    assert parts(file) == [(1, 500), (2, 500)]
    figures.record("damage", 0, 0, {"cases": 900, "of": 1})
    assert parts(file) == [(0, 900)]
