"""How diverse recovered images are and how far from real ones: the paper's similarity and MMD rows.

    python -m benchmarks.diversity --json benchmarks/results/diversity.json

Cosine similarity of two images of a class (lower is more diverse) and squared MMD to the real images, in
the teacher's features. Teacher and images are those of benchmarks.accuracy, kept in benchmarks/data; rded
images are stitched here.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.cells import DIGITS, TINY100, Cell
from benchmarks.accuracy.kept import teacher_facts
from benchmarks.accuracy.work import Workshop
from benchmarks.common.harness import parsed, write_json
from lpld_core.analysis import analyse
from lpld_core.images import RealFolder

CELLS = [
    Cell(method="lpld", ratio=1, teacher="plain", iterations=3000),
    Cell(method="sre2l", ratio=1, teacher="plain", iterations=3000),
    Cell(method="rded", ratio=1, teacher="plain"),
]
QUICK_CELLS = [Cell(method=method, ratio=1, teacher="plain") for method in ("lpld", "rded")]


def measure(workshop: Workshop, cells: Sequence[Cell], *, real_per_class: int = 200) -> dict[str, Any]:
    """Return one row per cell's images and one for real images."""
    teacher = workshop.teacher("plain")
    folders = [(cell.method, RealFolder.open(workshop.images(cell))) for cell in cells]
    found = analyse(teacher, folders, RealFolder.open(workshop.train), real_per_class=real_per_class)
    return {
        "scale": workshop.scale.as_json(),
        "teacher": teacher_facts(workshop.root, "plain"),
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
    parser.add_argument("--data", type=Path, help="directory with train/ and val/ [default: tiny100.tar.gz]")
    parser.add_argument("--quick", action="store_true", help="digits")
    arguments = parsed(parser)
    scale, cells = (DIGITS, QUICK_CELLS) if arguments.quick else (TINY100, CELLS)
    workshop = Workshop.open(arguments.work / scale.dataset, scale, arguments.data)
    results = measure(workshop, cells)
    show(results)
    if arguments.json is not None:
        command = "python -m benchmarks.diversity --json benchmarks/results/diversity.json"
        write_json(arguments.json, benchmark="diversity", command=command, results=results)


if __name__ == "__main__":
    main()
