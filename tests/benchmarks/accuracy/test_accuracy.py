"""A quick run of benchmarks/accuracy on digits; planning, resuming and verdicts."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy.cells import DIGITS, TINY20, Cell
from benchmarks.accuracy.claims import Row, claims
from benchmarks.accuracy.noise import pooled_noise
from benchmarks.accuracy.plan import GROUPS, planned, quick_cells
from benchmarks.accuracy.report import gathered
from benchmarks.accuracy.run import Record, read_records, run_cells
from tests.benchmarks.conftest import assert_drawn


def made_record(cell: Cell, top1: float) -> Record:
    facts: dict[str, Any] = {"top5": 0.5, "bytes": 10, "rows": 2, "steps": 3, "seconds": 1.0}
    return Record(scale=DIGITS.as_json(), cell=cell, top1=top1, **facts)


def test_finished_cells_are_not_trained_again_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    path, cells = tmp_path / "cells.jsonl", quick_cells(DIGITS)
    records = [made_record(cell, 0.5) for cell in cells]
    whole = "".join(record.line() for record in records)
    path.write_text(whole + '{"scale": {"dataset": "dig')
    assert run_cells(path, DIGITS, cells, work=tmp_path / "nothing-is-made-here") == records
    assert path.read_text() == whole
    assert not (tmp_path / "nothing-is-made-here").exists()
    assert read_records(path, replace(DIGITS, epochs=99)) == []


@pytest.mark.thorough
def test_a_quick_run_trains_every_kind_of_cell(tmp_path: Path, project: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.accuracy", "--quick", "--allow-dirty", "--workers", "2"]
    places = {"work": "work", "cells": "cells.jsonl", "json": "report.json", "png": "chart.png"}
    command += [word for name, place in places.items() for word in (f"--{name}", str(tmp_path / place))]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    results = json.loads((tmp_path / "report.json").read_text())["results"]
    assert results["students"] == len(quick_cells(DIGITS))
    assert results["teacher"]["top1"] > 0.3  # ten classes
    by_codec = {(row["codec"], row["ratio"]): row for row in results["rows"]}
    # More klt labels fit into the bytes of fewer f16 ones.
    assert by_codec["klt", 2]["labels"] > by_codec["f16", 10]["labels"]
    assert all(row["steps"] > 0 and 0 <= row["mean"] <= 1 for row in results["rows"])
    assert_drawn(tmp_path / "chart.png")


def test_the_plan_has_three_seeds_of_the_main_table_and_no_cell_twice() -> None:
    cells = planned(TINY20, list(GROUPS))
    assert len({cell.key for cell in cells}) == len(cells)
    for method, pool, ratio in itertools.product(("lpld", "sre2l"), ("batches", "epochs"), (1, 10, 20, 40)):
        row = Cell(method=method, ratio=ratio, pool=pool)
        assert [cell.seed for cell in cells if cell.row == row] == [0, 1, 2]


def _row(value: float, **fields: object) -> Row:
    cell = Cell(**{"method": "lpld", "ratio": 10, **fields})  # type: ignore[arg-type]  # mixed settings
    return Row(cell=cell, top1=(value - 0.01, value, value + 0.01), bytes=1, rows=1, steps=1)


def test_verdicts_follow_the_difference_and_its_error() -> None:
    def verdict(lpld: float, sre2l: float) -> str:
        rows = [_row(lpld), _row(sre2l, method="sre2l")]
        found = claims({row.cell.key: row for row in rows}, noise=0.01)
        (claim,) = [claim for claim in found if "class-wise" in claim.claim]
        return claim.verdict

    assert verdict(0.40, 0.30) == "holds"
    assert verdict(0.30, 0.40) == "does not hold"
    assert verdict(0.30, 0.301) == "undecided"


def test_codecs_are_compared_at_the_ratios_that_both_have() -> None:
    rows = [_row(0.4, codec="klt"), _row(0.3), _row(0.1, ratio=20), _row(0.2, codec="topk:3")]
    found = {claim.claim: claim for claim in claims({row.cell.key: row for row in rows}, noise=0.01)}
    assert found["klt beats f16 at equal bytes (ours)"].difference == pytest.approx(0.1)
    assert found["klt beats topk:3 at equal bytes (ours)"].difference == pytest.approx(0.2)


def test_seeds_are_gathered_into_rows() -> None:
    found = {seed: Cell(method="lpld", ratio=10, seed=seed) for seed in range(3)}
    records = [made_record(cell, 0.2 + 0.1 * seed) for seed, cell in found.items()]
    (row,) = gathered(records).values()
    assert row.mean == pytest.approx(0.3)
    noise = pooled_noise({"row": row})
    assert noise.deviation == pytest.approx(0.1)
    assert noise.freedom == len(row.top1) - 1
