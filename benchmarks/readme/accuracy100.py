"""The results' section on accuracy at 100 classes, as far as its plan has come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.accuracy.report import variant_name
from benchmarks.accuracy.tiny100.report import HEADINGS
from benchmarks.readme.accuracy import claim_lines, entry
from benchmarks.readme.parts import Results, table

NAME = "accuracy_tiny100"
FIRST = ("b", "c", "d")
"""Groups whose tables are shown at once; the others are folded away."""


def accuracy100(results: Results) -> Iterable[str]:
    """Yield setting, tables, picture and claims; nothing while there are no results to speak of."""
    if NAME not in results or results[NAME]["decisions"]["iterations"] is None:
        return
    found = results[NAME]
    yield "## Accuracy under pruning, 100 classes"
    yield ""
    yield _setting(found)
    for group in FIRST:
        yield from _group(found, group)
    yield ""
    yield f"![Accuracy against label bytes](../benchmarks/results/{NAME}.png)"
    yield ""
    yield "The paper's claims and ours (difference in points, positive speaks for the claim):"
    yield ""
    yield from claim_lines(found["claims"])
    yield ""
    yield "<details markdown><summary>All other tables, top-1 in %</summary>"
    for group in HEADINGS:
        if group not in FIRST:
            yield from _group(found, group)
    yield ""
    yield "</details>"
    yield ""
    yield results.source(NAME)


def _setting(found: dict[str, Any]) -> str:
    scale, decided = found["scale"], found["decisions"]
    teachers = ", ".join(f"{100 * facts['top1']:.1f} % {kind}" for kind, facts in found["teachers"].items())
    hours = sum(found["machine_seconds"]["students"].values()) / 3600
    return (
        f"100 classes of Tiny-ImageNet at {scale['size']} px, {scale['ipc']} images per class, "
        f"{scale['epochs']} epochs of labels in batches of {scale['batch_size']}; teachers of {teachers}, of "
        f"which the {decided['teacher']} one has the better students; {decided['iterations']} iterations of "
        f"recovery ({decided['iterations_because']}). {len(found['cells'])} students, {hours:.1f} hours of "
        "training in all on one thread each; one student's standard deviation is "
        f"{100 * found['noise_of_one_student']:.1f} points."
    )


def _group(found: dict[str, Any], group: str) -> Iterable[str]:
    """Yield one table: a line per variant, a column per ratio."""
    rows = [row for row in found["rows"] if group in row["groups"]]
    if not rows:
        return
    ratios = sorted({row["ratio"] for row in rows})
    variants: dict[str, dict[float, str]] = {}
    for row in rows:
        variants.setdefault(variant_name(row), {})[row["ratio"]] = entry(row)
    body = [
        [name, *(entries.get(ratio, "") for ratio in ratios)] for name, entries in sorted(variants.items())
    ]
    yield ""
    yield from table((HEADINGS[group], *(f"{ratio:g}x" for ratio in ratios)), body)
