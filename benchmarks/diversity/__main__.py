"""How diverse recovered images are and how far from real ones: the paper's similarity and MMD rows.

    python -m benchmarks.diversity --json benchmarks/results/diversity.json
    python -m benchmarks.diversity --methods lpld,sre2l --work accuracy-work

Cosine similarity of two images of a class (lower is more diverse) and squared MMD to the real images, in
the teacher's features. Images and teacher are those of benchmarks.accuracy, made here if they are missing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.cells import SCALES, Cell
from benchmarks.accuracy.work import Workshop
from benchmarks.common.harness import parsed, write_json
from lpld_core.analysis import analyse
from lpld_core.images import RealFolder

METHODS = ("lpld", "sre2l", "cda", "rded")


def measure(workshop: Workshop, methods: Sequence[str], *, real_per_class: int = 200) -> dict[str, Any]:
    """Return one row per method and one for real images."""
    teacher = workshop.teacher()
    folders = [(method, RealFolder.open(workshop.images(Cell(method=method, ratio=1)))) for method in methods]
    found = analyse(teacher, folders, RealFolder.open(workshop.train), real_per_class=real_per_class)
    return {
        "scale": workshop.scale.as_json(),
        "teacher": workshop.teacher_facts(),
        "bandwidth": round(found.bandwidth, 3),
        "rows": [
            {
                "images": row.name,
                "count": row.images,
                **{f"similarity_{name}": round(value, 4) for name, value in asdict(row.similarity).items()},
                "mmd_squared": None if row.mmd_squared is None else round(row.mmd_squared, 4),
            }
            for row in found.folders
        ],
    }


def show(results: dict[str, Any]) -> None:
    """Print the rows."""
    table = Table(title=f"Diversity of images, {results['scale']['dataset']}, IPC {results['scale']['ipc']}")
    for heading in ("images", "count", "similarity", "over classes", "with itself", "MMD squared"):
        table.add_column(heading, justify="left" if heading == "images" else "right")
    for row in results["rows"]:
        table.add_row(
            row["images"],
            str(row["count"]),
            f"{row['similarity_mean']:.3f}",
            f"+/- {row['similarity_std']:.3f}",
            f"{row['similarity_with_self']:.3f}",
            "" if row["mmd_squared"] is None else f"{row['mmd_squared']:.3f}",
        )
    Console().print(table)


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write results here")
    parser.add_argument("--work", type=Path, default=Path("accuracy-work"), help="teacher and images")
    parser.add_argument("--data", type=Path, help="directory with train/ and val/ instead of tiny20")
    parser.add_argument("--quick", action="store_true", help="digits")
    arguments = parsed(parser)
    scale = SCALES["digits" if arguments.quick else "tiny20"]
    workshop = Workshop.open(arguments.work / scale.dataset, scale, arguments.data)
    results = measure(workshop, METHODS)
    show(results)
    if arguments.json is not None:
        command = "python -m benchmarks.diversity --json benchmarks/results/diversity.json"
        write_json(arguments.json, benchmark="diversity", command=command, results=results)


if __name__ == "__main__":
    main()
