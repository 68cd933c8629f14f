"""The demo as a page: the table, charts of accuracy and bytes, the images."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.demo.table import COLUMNS, Line, cells, findings, what_pruning_costs
from lpld_core.recover.folder import contact_sheet
from lpld_labels.inspect.page import render_page, save_page
from lpld_labels.inspect.report import Bar, Chart, bars
from lpld_labels.inspect.text import human_bytes

if TYPE_CHECKING:
    from benchmarks.demo.run import Demo


def save_demo_page(path: Path, demo: Demo, lines: Sequence[Line]) -> None:
    """Write the page. demo: of the seed whose images are shown."""
    page = render_page(
        Path(__file__).with_name("page_template.html"),
        headers=[column.replace("\n", " ") for column in COLUMNS],
        rows=[cells(line) for line in lines],
        findings=findings(lines),
        costs=what_pruning_costs(lines),
        charts=_charts(lines),
        sheets={name: _sheet(demo.images(name)) for name in ("real", "lpld", "sre2l")},
        demo=demo,
    )
    save_page(path, page)


def _charts(lines: Sequence[Line]) -> list[Chart]:
    """Return top-1 of students and bytes of their pools; a pool has one colour in both."""
    accuracy: list[Bar] = []
    sizes: list[Bar] = []
    for line in lines:
        if line.pool_bytes is not None:
            name, colour, size = line.name, len(sizes), human_bytes(line.pool_bytes)
            sizes.append(Bar(label=name, value=line.pool_bytes, text=size, colour=colour))
            if line.top1:
                text = f"{line.text} %"
                bar = Bar(label=name, value=line.mean, spread=line.spread, text=text, colour=colour)
                accuracy.append(bar)
    says = "Top-1 of students on 1,000 other digits: mean, and standard deviation as a line."
    return [
        bars("Accuracy", says, accuracy),
        bars("Label bytes", "The whole pool on disk: labels, views and index.", sizes),
    ]


def _sheet(folder: Path) -> str:
    """Return ten images of each digit, one row per digit, as a data URI."""
    digits = sorted(path for path in folder.iterdir() if path.is_dir())
    sheet = contact_sheet([(digit.name, sorted(digit.glob("*.png"))) for digit in digits])
    return f"data:image/png;base64,{base64.b64encode(sheet).decode()}"
