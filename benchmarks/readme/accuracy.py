"""The results' section on accuracy at 20 classes: the main table, and all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.accuracy.plan import GROUPS
from benchmarks.readme.parts import Results, by_ratio, percent, table

TITLES = {
    "metrics": "Pruning by metrics",
    "codecs": "Codecs at equal bytes: more labels, but coarser ones, in the bytes of f16 at this ratio",
    "methods": "Other images",
    "ablation": "Ablation: lpld-global has class batches with global statistics",
    "large": "More images per class",
    "ensemble": "Two teachers, MSE + 0.1 x ground truth",
    "architectures": "Other students",
    "calibration": "Calibration: easy and hard batches left out before pruning at random",
}


def accuracy(results: Results) -> Iterable[str]:
    """Yield the main table with three seeds, and all other tables."""
    main, rest = results["accuracy_main"], results["accuracy"]
    scale = main["scale"]
    yield (
        f"20 classes of Tiny-ImageNet at {scale['size']} px, {scale['ipc']} images per class, "
        f"{scale['epochs']} epochs of labels, a teacher of {100 * main['teacher']['top1']:.1f} %; top-1 of "
        f"{main['students']} students in %. The standard deviation of one student is "
        f"{100 * main['noise_of_one_student']:.1f} points; a row without a spread is one student."
    )
    yield ""
    yield from _main_table(main)
    yield ""
    yield f"{results.source('accuracy_main')}"
    yield ""
    yield "![Accuracy against label bytes](../benchmarks/results/accuracy.png)"
    yield ""
    yield (
        f"The other tables are of {rest['scale']['epochs']} epochs and {rest['students']} students: "
        f"{results.source('accuracy')}"
    )
    for group in GROUPS:
        title = TITLES.get(group, f"The main table after {rest['scale']['epochs']} epochs")
        yield from by_ratio(title, [row for row in rest["rows"] if group in row["groups"]])


def _main_table(found: dict[str, Any]) -> Iterable[str]:
    cells = {(row["method"], row["codec"], row["pool"], row["ratio"]): row for row in found["rows"]}
    body = []
    for method in ("lpld", "sre2l"):
        for pool, name in (("batches", "drawn from all (ILP)"), ("epochs", "whole epochs")):
            values = [cells[method, "f16", pool, ratio] for ratio in (1, 10, 20, 40)]
            body.append([method, f"{name}, f16", *map(percent, values)])
    for codec in ("klt", "topk:5"):
        values = [cells["lpld", codec, "batches", ratio] for ratio in (10, 20, 40)]
        body.append(["lpld", f"ILP, {codec}: more labels in the same bytes", "", *map(percent, values)])
    yield from table(("images", "label batches", "1x", "10x", "20x", "40x"), body)
