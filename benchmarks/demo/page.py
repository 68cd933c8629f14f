"""The demo as a page: the table, accuracy of students, the images."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.demo.table import COLUMNS, Line, cells, findings, what_pruning_costs
from lpld_labels.inspect.page import render_page, save_page
from lpld_labels.inspect.report import Bar, Chart, bars
from lpld_labels.inspect.text import human_bytes

if TYPE_CHECKING:
    from benchmarks.demo.run import Demo


def save_demo_page(path: Path, demo: Demo, lines: Sequence[Line]) -> None:
    """Write the page."""
    page = render_page(
        Path(__file__).with_name("page_template.html"),
        headers=[column.replace("\n", " ") for column in COLUMNS],
        rows=[cells(line) for line in lines],
        findings=[finding.text for finding in findings({line.key: line.top1 for line in lines})],
        costs=what_pruning_costs(lines),
        accuracy=_accuracy(lines),
        methods={name: _sheet(demo, name) for name in ("lpld", "sre2l")},
        demo=demo,
    )
    save_page(path, page)


def _accuracy(lines: Sequence[Line]) -> Chart:
    """Return top-1 of students, each with the bytes of its pool."""
    items = [
        Bar(label=line.name, value=line.top1, text=f"{line.top1:.1%} from {human_bytes(line.pool_bytes)}")
        for line in lines
        if line.top1 is not None and line.pool_bytes
    ]
    return bars("Accuracy", "Top-1 of students, and the bytes of the pool they learned from.", items)


def _sheet(demo: Demo, method: str) -> str:
    sheet = (demo.out / method / "contact_sheet.png").read_bytes()
    return f"data:image/png;base64,{base64.b64encode(sheet).decode()}"
