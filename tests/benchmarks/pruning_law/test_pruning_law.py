"""The fit finds a law that data follow and counts comparable students only; results are those of the code."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.common.harness import RESULTS
from benchmarks.pruning_law.__main__ import measure
from benchmarks.pruning_law.chart import draw
from benchmarks.pruning_law.fit import errors, fit, unseen_errors, usable
from benchmarks.pruning_law.rows import Row, paper_rows, result_rows
from tests.benchmarks.conftest import assert_drawn


def _lawful(row: Row) -> Row:
    rate = 2.0 * row.views_before**-0.7 * (row.views_before / row.views - 1) ** 1.2
    return replace(row, top1=row.top1_before * float(np.exp(-rate)))


def test_a_law_that_data_follow_is_found() -> None:
    rows = [_lawful(row) for row in paper_rows()]
    law = fit(rows)
    assert (law.scale, law.views_exponent, law.ratio_exponent) == pytest.approx((2.0, 0.7, 1.2))
    assert law.log_error == pytest.approx(0, abs=1e-9)
    assert max(unseen_errors(rows).values()) == pytest.approx(0, abs=1e-9)
    assert errors(law, [replace(rows[0], top1=rows[0].top1_before * 0.5)])[0] > 0


def test_losses_within_noise_are_not_counted() -> None:
    row = next(paper_rows())
    assert usable([row, replace(row, top1=row.top1_before), replace(row, top1=row.top1_before + 1)]) == [row]


def test_only_comparable_students_are_counted(tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "method": "lpld",
        "ipc": None,
        "pool": "batches",
        "codec": "f16",
    }
    common |= {"drop_easy": 0.0, "policy": None, "ratio": 10, "rows": 30_000, "top1": 0.9}
    comparable = ({"ratio": 1, "rows": 300_000, "top1": 0.30}, {"top1": 0.26}, {"top1": 0.28})
    others = (
        {"method": "real"},
        {"codec": "klt", "rows": 60_000},
        {"policy": "shuffled"},
        {"pool": "epochs"},
        {"student_temperature": "calibrated"},
        {"ratio": 160, "rows": 1_800, "top1": 0.1},
    )
    cells = [{**common, **fields} for fields in (*comparable, *others)]
    path = tmp_path / "accuracy_tiny100.json"
    scale = {"dataset": "tiny100", "ipc": 10}
    results = {"scale": scale, "decisions": {"iterations": None}, "cells": cells}
    path.write_text(json.dumps({"results": results}))
    (row,) = result_rows(path)
    assert (row.views, row.views_before) == (300, 3000)
    assert (row.top1, row.top1_before) == pytest.approx((27, 30))
    assert row.loss == pytest.approx(0.1)
    # One student at 1x decides nothing; three and more do.
    assert row.students == 1
    assert not row.settled
    assert replace(row, students=3).settled
    assert all(other.settled for other in paper_rows())


def test_results_are_those_of_the_code(tmp_path: Path) -> None:
    written = json.loads((RESULTS / "pruning_law.json").read_text())["results"]
    measured = measure(RESULTS)
    assert written == json.loads(json.dumps(measured))
    draw(measured, tmp_path / "law.png")
    assert_drawn(tmp_path / "law.png")
