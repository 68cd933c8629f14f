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
    yield from _choice(found)
    yield ""
    yield f"![Accuracy against label bytes](../benchmarks/results/{NAME}.png)"
    yield ""
    yield "What students of both methods see, class by class:"
    yield ""
    yield f"![Recovered images of lpld and sre2l](../benchmarks/results/{NAME}_images.png)"
    if found["claims"]:
        yield ""
        yield "The paper's claims and ours (difference in points, beyond the margin where a claim names one):"
        yield ""
        yield from claim_lines(found["claims"])
        yield ""
        yield (
            "What else was tried stands among them: for what 10x costs, label batches drawn without "
            "replacement (shuffled); for klt against all labels, temperatures that fall and temperatures of "
            "the student's own."
        )
    yield ""
    yield "<details markdown><summary>All other tables, top-1 in %</summary>"
    for group in HEADINGS:
        if group not in FIRST:
            yield from _group(found, group)
    yield ""
    yield "</details>"
    yield from _status(found)
    yield ""
    yield results.source(NAME)


def _setting(found: dict[str, Any]) -> str:
    scale, decided = found["scale"], found["decisions"]
    teachers = ", ".join(f"{100 * facts['top1']:.1f} % {kind}" for kind, facts in found["teachers"].items())
    judged = ", ".join(
        f"{100 * mean:.2f} % {kind}" for kind, mean in decided["teacher_students"].items() if mean is not None
    )
    return (
        f"100 classes of Tiny-ImageNet at {scale['size']} px, {scale['ipc']} images per class, "
        f"{scale['epochs']} epochs of labels in batches of {scale['batch_size']}; teachers of {teachers}. "
        f"Taken is the {decided['teacher']} one, by the mean of its students ({judged}); "
        f"{decided['iterations']} iterations of recovery ({decided['iterations_because']}). "
        f"{len(found['cells'])} students; one student's standard deviation is "
        f"{100 * found['noise_of_one_student']:.1f} points ({found['noise_freedom']} degrees of freedom). "
        "Seeds change prunings and students: there is one teacher, one set of images of each method and one "
        "validation set, and the errors say nothing of others. A row without a spread is one student."
    )


def _choice(found: dict[str, Any]) -> Iterable[str]:
    """Yield what codecs were chosen from, on a seed that is not among those of the other tables."""
    tried = {row["ratio"] for row in found["choice"] if row["codec"] != "f16"}
    if not tried:
        return
    yield ""
    yield (
        "What codecs were chosen from: one student each, of seed 0; the tables above have the chosen ones on "
        "other seeds. Bytes are those of the whole pool."
    )
    yield ""
    body = [
        [
            f"{row['ratio']:g}x",
            f"`{row['codec']}`",
            f"{row['batches']:,}",
            f"{row['bytes'] / 1e6:.2f}",
            f"{100 * row['top1']:.1f}",
        ]
        for row in found["choice"]
        if row["ratio"] in tried
    ]
    yield from table(("in the bytes of f16 at", "codec", "batches", "MB", "top-1, %"), body)


def _status(found: dict[str, Any]) -> Iterable[str]:
    """Yield what each part of the plan took, what is left of it, and the command that goes on."""
    seconds = found["machine_seconds"]
    body = [
        [
            group,
            HEADINGS[group],
            str(facts["done"]),
            str(facts["left"]),
            f"{seconds['students'].get(group, 0.0) / 3600:.1f}",
            f"{facts['seconds'] / 3600:.1f}",
        ]
        for group, facts in found["status"].items()
    ]
    yield ""
    yield (
        "Hours of one processor; besides, teachers took "
        f"{seconds['teachers'] / 3600:.1f}, images {seconds['images'] / 3600:.1f} and checks of recovery "
        f"{seconds['checks'] / 3600:.1f}:"
    )
    yield ""
    heads = ("part", "what", "done", "left", "hours it took", "hours left, about")
    yield from table(heads, body)
    left = ",".join(group for group, facts in found["status"].items() if facts["left"])
    if left:
        yield ""
        yield (
            "What is left is done by "
            f"`python -m benchmarks.accuracy --scale tiny100 --workers 2 --groups {left}`."
        )


def _group(found: dict[str, Any], group: str) -> Iterable[str]:
    """Yield one table: a line per variant, a column per ratio."""
    rows = [row for row in found["rows"] if group in row["groups"]]
    # Codecs have f16 to compare them with, which alone says nothing.
    if not rows or (group in ("c", "c2") and {row["codec"] for row in rows} == {"f16"}):
        return
    ratios = sorted({row["ratio"] for row in rows})
    variants: dict[str, dict[float, str]] = {}
    for row in rows:
        name = variant_name(row, iterations=group == "settled")
        variants.setdefault(name, {})[row["ratio"]] = entry(row)
    body = [
        [name, *(entries.get(ratio, "") for ratio in ratios)] for name, entries in sorted(variants.items())
    ]
    yield ""
    yield from table((HEADINGS[group], *(f"{ratio:g}x" for ratio in ratios)), body)
