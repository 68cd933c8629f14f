import json
from pathlib import Path

from benchmarks.common.harness import RESULTS
from benchmarks.pruning_law.__main__ import measure
from benchmarks.pruning_law.chart import draw
from tests.benchmarks.conftest import assert_drawn


def test_results_are_those_of_the_code(tmp_path: Path) -> None:
    written = json.loads((RESULTS / "pruning_law.json").read_text())["results"]
    measured = measure(RESULTS)
    assert written == json.loads(json.dumps(measured))
    draw(measured, tmp_path / "law.png")
    assert_drawn(tmp_path / "law.png")
