"""The demo as a page: the table, bytes against accuracy, the images, the students."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.demo.table import COLUMNS, Line, cells, findings, what_pruning_costs
from lpld_labels.inspect.charts import Chart, Series, plot
from lpld_labels.inspect.page import render_page, save_page
from lpld_labels.inspect.runs import read_runs, run_charts
from lpld_labels.inspect.text import human_bytes

if TYPE_CHECKING:
    from benchmarks.demo.run import Demo

CURVES = {
    "real digits": ("real_1x",),
    "sre2l images": ("sre2l_1x", "sre2l_10x", "sre2l_40x"),
    "lpld images": ("lpld_1x", "lpld_10x", "lpld_40x"),
    "lpld images, klt": ("lpld_klt",),
}


def save_demo_page(path: Path, demo: Demo, lines: Sequence[Line]) -> None:
    """Write the page."""
    runs = [demo.student(*line.key.split("_")) for line in lines if line.pool_bytes and line.top1 is not None]
    page = render_page(
        Path(__file__).with_name("page_template.html"),
        headers=[column.replace("\n", " ") for column in COLUMNS],
        rows=[cells(line) for line in lines],
        findings=[finding.text for finding in findings({line.key: line.top1 for line in lines})],
        costs=what_pruning_costs(lines),
        accuracy=_accuracy(lines),
        methods={name: _sheet(demo, name) for name in ("lpld", "sre2l")},
        curves=_learning(runs),
        demo=demo,
    )
    save_page(path, page)


def _accuracy(lines: Sequence[Line]) -> Chart:
    series = []
    for name, keys in CURVES.items():
        chosen = [line for line in lines if line.key in keys and line.top1 is not None]
        points = [(float(line.pool_bytes or 0), 100 * (line.top1 or 0)) for line in chosen]
        series.append(Series(name=name, points=points, labels=[line.name for line in chosen]))
    return plot(
        "Accuracy against bytes",
        "Top-1 of students over the bytes of the pool they learned from; prunings are joined.",
        series,
        x="label bytes",
        y="top-1, %",
        logarithmic_x=True,
        x_form=human_bytes,
    )


def _learning(runs: Sequence[Path]) -> list[Chart]:
    """Return how loss and accuracy went; the learning rate is the same for all."""
    return [chart for chart in run_charts(read_runs(runs)) if chart.title != "Learning rate"]


def _sheet(demo: Demo, method: str) -> str:
    sheet = (demo.out / method / "contact_sheet.png").read_bytes()
    return f"data:image/png;base64,{base64.b64encode(sheet).decode()}"
