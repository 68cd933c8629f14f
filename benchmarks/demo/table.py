"""What the demo ends with: accuracy against label bytes as a table, and what it shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    "sre2l_40x": "sre2l images, pruned 40x",
    "lpld_40x": "lpld images, pruned 40x",
    "lpld_klt": "lpld images, klt in the bytes of 40x",
}
"""Students by the labels they learned from, in the order of the table."""
COLUMNS = ("student of", "views of\na class", "pool on\ndisk", "top-1")
LEAST_SOFT, LEAST_KLT = 3.0, 5.0
"""Points by which soft labels and klt have to be ahead for the table to say that it shows."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table; None where no labels are stored, or, of top1, where there is no student.

    views: labelled views of an average class.
    """

    key: str
    name: str
    top1: float | None
    batches: int | None = None
    views: int | None = None
    pool_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What two rows say: points of difference (None where a row is missing), and whether the claim shows.

    spread: points by which the row may be behind, because runs of it scatter as far.
    """

    claim: str
    points: float | None
    shows: bool
    spread: float = 0.0

    @property
    def text(self) -> str:
        """One line for people."""
        if self.points is None:
            return f"{self.claim}: not measured, the labels do not fit at this size"
        if self.shows and abs(self.points) < self.spread:
            return (
                f"{self.claim}: {self.points:+.1f} points; no difference, runs scatter by {self.spread:.1f}"
            )
        return f"{self.claim}: {self.points:+.1f} points{'' if self.shows else '; does not show here'}"


def measured_lines(demo: Demo, *, teacher: float) -> list[Line]:
    """Weigh the pools and look up what their students reached."""
    from lpld_labels.inspect.summary import summarise

    lines = [Line(key="teacher", name="the teacher: 3,900 digits, true classes", top1=teacher)]
    for key, name in ROWS.items():
        source, _, form = key.partition("_")
        run, pool = demo.student(source, form) / "log.jsonl", demo.pool(source, form)
        top1 = json.loads(run.read_text().splitlines()[-1])["top1"] if run.exists() else None
        summary = summarise(pool) if pool.exists() else None
        counts = summary.manifest.counts if summary else None
        lines.append(
            Line(
                key=key,
                name=name,
                top1=top1,
                batches=counts.batches if counts else None,
                views=round(counts.rows / summary.manifest.header.classes) if summary and counts else None,
                pool_bytes=summary.total_bytes if summary else None,
            )
        )
    return lines


def findings(
    top1: Mapping[str, float | None], deviations: Mapping[str, float | None] | None = None
) -> list[Finding]:
    """Say what accuracies show, by the keys of ROWS.

    deviations: how far several runs scatter. lpld may be behind sre2l by the larger one of its two rows.
    """
    scattered = deviations or {}

    def finding(claim: str, key: str, baseline: str, least: float | None = None) -> Finding:
        one, other = top1.get(key), top1.get(baseline)
        if one is None or other is None:
            return Finding(claim=claim, points=None, shows=False)
        points = 100 * (one - other)
        if least is not None:
            return Finding(claim=claim, points=points, shows=points >= least)
        spread = 100 * max(scattered.get(key) or 0.0, scattered.get(baseline) or 0.0)
        return Finding(claim=claim, points=points, shows=points >= -spread, spread=spread)

    found = [finding("soft labels over true classes", "real_1x", "real_true", LEAST_SOFT)]
    for form, name in (("1x", "all labels"), ("10x", "labels pruned 10x"), ("40x", "labels pruned 40x")):
        found.append(finding(f"lpld over sre2l images, {name}", f"lpld_{form}", f"sre2l_{form}"))
    found.append(finding("klt over f16 in the bytes of 40x", "lpld_klt", "lpld_40x", LEAST_KLT))
    return found


def what_pruning_costs(lines: Sequence[Line]) -> str:
    """Return what students lose by pruning, and why it is more here than where the method is used."""
    by_key = {line.key: line for line in lines}
    whole = by_key["lpld_1x"]
    costs = []
    for form in ("10x", "40x"):
        pruned = by_key[f"lpld_{form}"]
        lost = 100 * ((whole.top1 or 0) - (pruned.top1 or 0))
        costs.append(f"{form} keeps {pruned.views:,} and costs {lost:.1f} points")
    return (
        f"What pruning costs depends on the views that are left. Here a class has {whole.views:,}: "
        f"{', '.join(costs)}. In ImageNet-1K's pool of 50 images per class it has 15,000, and 40x keeps 375."
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
        "does not fit" if line.top1 is None else f"{line.top1:.1%}",
    ]


def show_findings(lines: Sequence[Line]) -> None:
    """Print what the table shows, one line each."""
    for finding in findings({line.key: line.top1 for line in lines}):
        stdout_console().print(finding.text, highlight=False, soft_wrap=True)


def save_table(path: Path, lines: Sequence[Line], *, seed: int, seconds: float) -> None:
    """Write the table as JSON."""
    document = {"seed": seed, "seconds": round(seconds, 1), "lines": [asdict(line) for line in lines]}
    path.write_text(json.dumps(document, indent=2) + "\n")
