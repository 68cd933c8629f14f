"""The fit finds a law that data follow; results are those of the code."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.harness import RESULTS
from benchmarks.pruning_law.__main__ import measure
from benchmarks.pruning_law.chart import draw
from benchmarks.pruning_law.fit import errors, fit, unseen_errors
from benchmarks.pruning_law.rows import Row, paper_rows
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


def test_results_are_those_of_the_code(tmp_path: Path) -> None:
    written = json.loads((RESULTS / "pruning_law.json").read_text())["results"]
    measured = measure(RESULTS)
    assert written == json.loads(json.dumps(measured))
    draw(measured, tmp_path / "law.png")
    assert_drawn(tmp_path / "law.png")
