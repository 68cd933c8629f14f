"""What the demo ends with: accuracy against label bytes as a table, and what it shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from lpld_cli.console import stdout_console

from lpld_labels.inspect.text import human_bytes

if TYPE_CHECKING:
    from benchmarks.demo.run import Demo

ROWS: Mapping[str, str] = {
    "real_true": "10 real digits of each kind, true classes",
    "real_1x": "the same digits, soft labels",
    "sre2l_1x": "sre2l images, all labels",
    "lpld_1x": "lpld images, all labels",
    "sre2l_10x": "sre2l images, pruned 10x",
    "lpld_10x": "lpld images, pruned 10x",
    "lpld_klt": "lpld images, klt in the bytes of 10x",
}
"""Students by the labels they learned from, in the order of the table."""
CLAIMS = {
    "soft labels over true classes": ("real_1x", "real_true"),
    "real digits over lpld images": ("real_1x", "lpld_1x"),
    "all labels over labels pruned 10x": ("lpld_1x", "lpld_10x"),
    "klt over f16 in the bytes of 10x": ("lpld_klt", "lpld_10x"),
    "lpld over sre2l images, all labels": ("lpld_1x", "sre2l_1x"),
    "lpld over sre2l images, labels pruned 10x": ("lpld_10x", "sre2l_10x"),
}
"""What the table is asked: whether students of the first row are better than those of the second."""
COLUMNS = ("students of", "views of\na class", "pool on\ndisk", "top-1, %", "each")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table. top1: of each seed's student; empty if labels do not fit. None: no labels."""

    key: str
    name: str
    top1: tuple[float, ...]
    views: int | None = None
    pool_bytes: int | None = None

    @property
    def mean(self) -> float:
        """Mean accuracy of the students."""
        return fmean(self.top1)

    @property
    def spread(self) -> float:
        """Standard deviation of the students' accuracy; 0 of a single one."""
        return stdev(self.top1) if len(self.top1) > 1 else 0.0

    @property
    def text(self) -> str:
        """Accuracy in per cent, with its spread."""
        spread = f" +/- {100 * self.spread:.1f}" if len(self.top1) > 1 else ""
        return f"{100 * self.mean:.1f}{spread}" if self.top1 else "does not fit"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """How far one row is ahead of another, and two standard errors of that, both in points.

    points is None where a row is missing; two_errors where there are too few students to tell.
    """

    claim: str
    points: float | None
    two_errors: float | None

    @property
    def verdict(self) -> str:
        """A claim holds, or fails, by more than two standard errors."""
        if self.points is None or self.two_errors is None or abs(self.points) <= self.two_errors:
            return "undecided"
        return "holds" if self.points > 0 else "does not hold"

    @property
    def found(self) -> str:
        """What was measured."""
        if self.points is None:
            return "not measured, the labels do not fit at this size"
        error = "" if self.two_errors is None else f" (+/- {self.two_errors:.1f})"
        return f"{self.points:+.1f} points{error}"

    @property
    def text(self) -> str:
        """One line for people."""
        unseen = "; too close to tell at this size" if self.verdict == "undecided" else ""
        return f"{self.claim}: {self.found}{unseen}"


def measured_lines(demos: Sequence[Demo], *, teacher: float) -> list[Line]:
    """Weigh the pools and look up what their students reached."""
    from lpld_labels.inspect.summary import summarise

    lines = [Line(key="teacher", name="the teacher: 3,900 digits, true classes", top1=(teacher,))]
    for key, name in ROWS.items():
        source, _, form = key.partition("_")
        logs = [demo.student(source, form) / "log.jsonl" for demo in demos]
        pools = [summarise(pool) for demo in demos if (pool := demo.pool(source, form)).exists()]
        top1 = [float(json.loads(log.read_text().splitlines()[-1])["top1"]) for log in logs if log.exists()]
        manifest = pools[0].manifest if pools else None
        lines.append(
            Line(
                key=key,
                name=name,
                top1=tuple(top1) if len(top1) == len(demos) else (),
                views=round(manifest.counts.rows / manifest.header.classes) if manifest else None,
                pool_bytes=round(fmean(pool.total_bytes for pool in pools)) if pools else None,
            )
        )
    return lines


def findings(lines: Sequence[Line]) -> list[Finding]:
    """Say what the lines show."""
    by_key = {line.key: line for line in lines}
    found = []
    for claim, (key, baseline) in CLAIMS.items():
        one, other = by_key[key], by_key[baseline]
        points = two_errors = None
        if one.top1 and other.top1:
            points = 100 * (one.mean - other.mean)
            if len(one.top1) > 1:
                variance = (one.spread**2 + other.spread**2) / len(one.top1)
                two_errors = 100 * 2 * variance**0.5
        found.append(Finding(claim=claim, points=points, two_errors=two_errors))
    return found


def what_pruning_costs(lines: Sequence[Line]) -> str:
    """Return what is left of a class, here and where the method is used."""
    views = {line.key: line.views for line in lines}
    return (
        f"What pruning costs depends on the views that are left. Here a class has {views['lpld_1x']:,}, "
        f"and 10x keeps {views['lpld_10x']:,}. In ImageNet-1K's pool of 50 images per class it has 15,000, "
        "and 40x keeps 375."
    )


def show_table(lines: Sequence[Line]) -> None:
    """Print the table."""
    from rich.table import Table

    table = Table(title="Label bytes against accuracy: MNIST, 10 images per class", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == COLUMNS[0] else "right")
    for line in lines:
        table.add_row(*cells(line))
    stdout_console().print(table)


def cells(line: Line) -> list[str]:
    """Return a line's texts."""
    return [
        line.name,
        "" if line.views is None else f"{line.views:,}",
        "" if line.pool_bytes is None else human_bytes(line.pool_bytes),
        line.text,
        " ".join(f"{100 * value:.1f}" for value in line.top1) if len(line.top1) > 1 else "",
    ]


def as_json(lines: Sequence[Line], *, seconds: float, cpu_seconds: float) -> dict[str, Any]:
    """Return the table and what it shows."""
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "rows": [vars(line) for line in lines],
        "findings": [vars(finding) for finding in findings(lines)],
    }
