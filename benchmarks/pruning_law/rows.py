"""Prunings whose cost is known: the paper's tables, and the cells of our own accuracy benchmarks.

Only one kind is compared: labels of full precision, batches kept at random and drawn from all that are left
(the paper's improved label pool), class-wise images.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

CLASSES = {"tiny20": 20, "tiny100": 100}
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
    *("temperature_schedule", "student_temperature"),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One pruning.

    views, views_before: distinct views per class. top1, top1_before: in percent, mean of seeds.
    source: "paper", or the results file. students: how many of ours stand behind either accuracy, the fewer.
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
        """Whether one student more would hardly change it."""
        return self.source == "paper" or self.students >= FEWEST_STUDENTS

    @property
    def loss(self) -> float:
        """Share of the accuracy that is lost; negative where pruning seemed to help."""
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
    """Yield the prunings of one of our results files; a file that is not there has none."""
    if not path.exists():
        return
    results = json.loads(path.read_text())["results"]
    scale = results["scale"]
    classes = CLASSES[scale["dataset"]]
    for ipc, cells in _by_images(_students(results), scale["ipc"]).items():
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


def _students(results: dict[str, Any]) -> Iterator[tuple[dict[str, Any], int, list[float]]]:
    """Yield (settings, views, accuracies); files of single cells and files of table rows hold the same."""
    settled = results.get("decisions", {}).get("iterations")
    for cell in results.get("cells", ()):
        if cell.get("iterations") in (None, settled):
            yield cell, cell["rows"], [cell["top1"]]
    for row in results.get("rows", ()) if "cells" not in results else ():
        # A table row says "labels" for the number of labels, a cell for who gave them.
        yield row, row["labels"], row["top1"]


def _by_images(
    students: Iterator[tuple[dict[str, Any], int, list[float]]], default: int
) -> dict[int, dict[float, tuple[float, float, int]]]:
    """Return {images per class: {ratio: (views, top-1 in percent, how many)}} of students that count here."""
    found: dict[int, dict[float, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for settings, views, accuracies in students:
        plain = settings["codec"] == "f16" and settings["loss"] == "kl" and settings["by"] == "random"
        plain = plain and settings["method"] == "lpld" and settings["pool"] == "batches"
        if plain and not any(settings.get(name) for name in OTHER_SETTINGS):
            found[settings["ipc"] or default][float(settings["ratio"])] += [
                (views, 100 * value) for value in accuracies
            ]
    return {ipc: {ratio: _mean(values) for ratio, values in by.items()} for ipc, by in found.items()}


def _mean(values: Sequence[tuple[int, float]]) -> tuple[float, float, int]:
    views, top1 = zip(*values, strict=True)
    return fmean(views), fmean(top1), len(values)
