"""The results' section on accuracy under pruning, from the finished cells of its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.accuracy.report import HEADINGS
from benchmarks.readme.parts import Results, by_ratio, table

NAME = "accuracy_tiny100"


def accuracy(results: Results) -> Iterable[str]:
    """Yield setting, pictures and tables."""
    found = results[NAME]
    yield _setting(found)
    yield ""
    yield f"![Accuracy against the bytes of labels and images](../benchmarks/results/{NAME}.png)"
    yield ""
    yield "Synthetic images of both methods, class by class:"
    yield ""
    yield f"![Recovered images of lpld and sre2l](../benchmarks/results/{NAME}_images.png)"
    for group, heading in HEADINGS.items():
        rows = [row for row in found["rows"] if group in row["groups"]]
        if rows and _has_own_students(group, rows):
            yield from by_ratio(heading, rows, iterations=group == "settled")
    yield from _choice(found)
    yield ""
    yield results.source(NAME)


def _has_own_students(group: str, rows: list[dict[str, Any]]) -> bool:
    """Return whether a group has more than the students that it shares with others for comparison."""
    own: dict[str, Callable[[dict[str, Any]], bool]] = {
        **dict.fromkeys(("c", "c2"), lambda row: row["codec"] != "f16"),
        "ablation": lambda row: row["method"] == "lpld-global",
        "real": lambda row: row["method"] == "real" and row["codec"] != "f16",
        "phases": lambda row: row["phases"] is not None,
    }
    return group not in own or any(map(own[group], rows))


def _setting(found: dict[str, Any]) -> str:
    scale, decided = found["scale"], found["decisions"]
    teachers = ", ".join(f"{100 * facts['top1']:.1f} % {kind}" for kind, facts in found["teachers"].items())
    judged = ", ".join(
        f"{100 * mean:.2f} % {kind}" for kind, mean in decided["teacher_students"].items() if mean is not None
    )
    return (
        f"100 classes of Tiny-ImageNet at {scale['size']} px, {scale['ipc']} images per class, "
        f"{scale['epochs']} epochs of labels in batches of {scale['batch_size']}. Teachers: {teachers}. "
        f"The {decided['teacher']} one is used, because its students are better on average ({judged}). "
        f"Recovery takes {decided['iterations']} iterations ({decided['iterations_because']}). "
        f"{len(found['cells'])} students; the standard deviation of one student is "
        f"{100 * found['noise_of_one_student']:.1f} points ({found['noise_freedom']} degrees of freedom). "
        "Seeds change prunings and students. There is one teacher, one set of images for each method and one "
        "validation set, so the errors do not cover others. A row without a spread is one student. Tables "
        "show top-1 in %."
    )


def _choice(found: dict[str, Any]) -> Iterable[str]:
    """Yield the codecs that were tried on seed 0, from which the best were chosen."""
    tried = {row["ratio"] for row in found["choice"] if row["codec"] != "f16"}
    if not tried:
        return
    yield ""
    yield (
        "These codecs were tried with one student each, of seed 0. The tables above show the best ones "
        "on other seeds. Bytes are those of the whole pool."
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
