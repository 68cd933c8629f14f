"""Prunings whose cost is known: the paper's tables, and the cells of our accuracy benchmark.

All have class-wise images and lossless labels, and students draw from all batches that random pruning kept
(the paper's improved label pool).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

CLASSES = {"tiny100": 100}
FEWEST_STUDENTS = 3
PAPER_RATIOS = (1, 10, 20, 30, 40)
PAPER = (
    # data, classes, epochs, top-1 of "Ours" with a ResNet-18 by images per class, at PAPER_RATIOS
    (
        "ImageNet-1K",
        1000,
        300,
        {
            10: (34.6, 32.7, 28.6, 23.1, 20.2),
            20: (47.2, 44.7, 41.0, 35.9, 33.0),
            50: (55.4, 54.4, 51.8, 48.6, 46.7),
            100: (59.4, 58.8, 57.4, 55.2, 54.0),
            200: (62.6, 62.4, 61.7, 60.1, 59.6),
        },
    ),
    ("Tiny-ImageNet", 200, 100, {50: (48.8, 46.7, 44.3, 40.2, 38.4), 100: (53.6, 52.2, 50.6, 47.6, 46.1)}),
)
OTHER_SETTINGS = (
    *("prefer", "drop_easy", "drop_hard", "student", "policy", "mix"),
    *("temperature_schedule", "student_temperature", "phases"),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One pruning.

    views, views_before: distinct views per class. top1, top1_before: in percent, mean of seeds.
    source: "paper", or the results file. students: those of the accuracy with fewer of them, if ours.
    """

    data: str
    source: str
    classes: int
    ipc: int
    ratio: float
    views: float
    views_before: float
    top1: float
    top1_before: float
    students: int = 0

    @property
    def settled(self) -> bool:
        """Whether there are enough students."""
        return self.source == "paper" or self.students >= FEWEST_STUDENTS

    @property
    def loss(self) -> float:
        """Share of the accuracy that is lost; negative if the pruned pool did better."""
        return 1 - self.top1 / self.top1_before


def paper_rows() -> Iterator[Row]:
    """Yield the paper's prunings."""
    for data, classes, epochs, tables in PAPER:
        for ipc, top1 in tables.items():
            for ratio, value in zip(PAPER_RATIOS[1:], top1[1:], strict=True):
                yield Row(
                    data=data,
                    source="paper",
                    classes=classes,
                    ipc=ipc,
                    ratio=ratio,
                    views=ipc * epochs / ratio,
                    views_before=ipc * epochs,
                    top1=value,
                    top1_before=top1[0],
                )


def result_rows(path: Path) -> Iterator[Row]:
    """Yield the prunings in our results file."""
    results = json.loads(path.read_text())["results"]
    scale = results["scale"]
    classes = CLASSES[scale["dataset"]]
    for ipc, cells in _by_images(results).items():
        if 1.0 not in cells:
            continue
        all_views, all_top1, all_students = cells.pop(1.0)
        for ratio, (views, top1, students) in sorted(cells.items()):
            if ratio > max(PAPER_RATIOS):
                continue
            yield Row(
                data=scale["dataset"],
                source=path.name,
                classes=classes,
                ipc=ipc,
                ratio=ratio,
                views=views / classes,
                views_before=all_views / classes,
                top1=top1,
                top1_before=all_top1,
                students=min(students, all_students),
            )


def _by_images(results: dict[str, Any]) -> dict[int, dict[float, tuple[float, float, int]]]:
    """Return {images per class: {ratio: (views, top-1 in percent, students)}} of comparable students."""
    found: dict[int, dict[float, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for cell in results["cells"]:
        plain = cell["codec"] == "f16" and cell["method"] == "lpld" and cell["pool"] == "batches"
        settled = cell.get("iterations") in (None, results["decisions"]["iterations"])
        if plain and settled and not any(cell.get(name) for name in OTHER_SETTINGS):
            by_ratio = found[cell["ipc"] or results["scale"]["ipc"]]
            by_ratio[float(cell["ratio"])].append((cell["rows"], 100 * cell["top1"]))
    return {ipc: {ratio: _mean(values) for ratio, values in by.items()} for ipc, by in found.items()}


def _mean(values: Sequence[tuple[int, float]]) -> tuple[float, float, int]:
    views, top1 = zip(*values, strict=True)
    return fmean(views), fmean(top1), len(values)
