"""The tiny run that each benchmark has."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

QuickRun = Callable[..., Any]


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> QuickRun:
    """Run a benchmark's command with --quick in this process and return its results.

    A tiny run says nothing about speed. It shows that everything is measured, and checked by the benchmark.
    """

    def run(module: str, *options: str) -> Any:
        report = tmp_path_factory.mktemp("report") / "report.json"
        with pytest.MonkeyPatch.context() as patch:
            words = ["--quick", "--allow-dirty", "--json", str(report), *options]
            patch.setattr("sys.argv", [module, *words])
            importlib.import_module(module).main()
        document = json.loads(report.read_text())
        assert document["circumstances"]["versions"]
        return document["results"]

    return run


def assert_drawn(chart: Path) -> None:
    assert chart.stat().st_size > 10_000
