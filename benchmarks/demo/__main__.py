"""What `make demo` shows, with several seeds: teacher, images, labels and students follow from one.

    python -m benchmarks.demo --json benchmarks/results/demo.json

A seed is one run of the demo, and is kept in --work: run the same command again to go on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common.harness import commit, parsed, write_json, write_whole
from benchmarks.demo.table import ROWS, Finding, findings

QUICK = ("--epochs", "20", "--teacher-epochs", "1", "--iterations", "2")


def run_seed(work: Path, seed: int, options: Sequence[str] = ()) -> dict[str, Any]:
    """Run the demo with a seed, or find what it gave before: its table and its processor seconds."""
    folder = work / f"seed-{seed}"
    result = folder / "measured.json"
    if not result.exists():
        command = [sys.executable, "-m", "benchmarks.demo.run", "--out", str(folder), "--seed", str(seed)]
        began_at, before = commit(), _children_seconds()
        subprocess.run([*command, *options], check=True)
        table = json.loads((folder / "table.json").read_text())
        spent = round(_children_seconds() - before, 1)
        write_whole(result, {**table, "cpu_seconds": spent, "commit": began_at})
    measured: dict[str, Any] = json.loads(result.read_text())
    return measured


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def summarised(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and spread of every row over the seeds, and what they show."""
    rows = []
    for place, line in enumerate(runs[0]["lines"]):
        found = [run["lines"][place] for run in runs]
        top1 = [one["top1"] for one in found]
        whole = all(value is not None for value in top1)
        rows.append(
            {
                "key": line["key"],
                "name": line["name"],
                "batches": line["batches"],
                "views": line["views"],
                "pool_bytes": [one["pool_bytes"] for one in found],
                "top1": top1,
                "top1_mean": round(float(np.mean(top1)), 5) if whole else None,
                "top1_std": round(float(np.std(top1, ddof=1)), 5) if whole and len(top1) > 1 else None,
            }
        )
    by_key = {row["key"]: row for row in rows}
    says = findings(
        {key: by_key[key]["top1_mean"] for key in ROWS}, {key: by_key[key]["top1_std"] for key in ROWS}
    )
    return {
        "seeds": [run["seed"] for run in runs],
        # Runs are kept and gathered later, perhaps at another commit than the one that is recorded then.
        "commits": [run.get("commit") for run in runs],
        "seconds": [run["seconds"] for run in runs],
        "cpu_seconds": [run["cpu_seconds"] for run in runs],
        "rows": rows,
        "findings": [
            {
                "claim": one.claim,
                "points": None if one.points is None else round(one.points, 2),
                "shows": one.shows,
                "spread": round(one.spread, 2),
            }
            for one in says
        ],
    }


def show(results: dict[str, Any]) -> None:
    """Print the rows and what they show."""
    table = Table(title=f"The demo with {len(results['seeds'])} seeds: top-1 in %", title_justify="left")
    for column in ("student of", "views", "bytes", "mean", "std", "each"):
        table.add_column(column, justify="left" if column == "student of" else "right")
    for row in results["rows"]:
        known = [value for value in row["top1"] if value is not None]
        table.add_row(
            row["name"],
            "" if row["views"] is None else str(row["views"]),
            "" if row["pool_bytes"][0] is None else f"{row['pool_bytes'][0]:,}",
            "" if row["top1_mean"] is None else f"{100 * row['top1_mean']:.1f}",
            "" if row["top1_std"] is None else f"{100 * row['top1_std']:.1f}",
            " ".join(f"{100 * value:.1f}" for value in known),
        )
    console = Console(width=130)
    console.print(table)
    for one in results["findings"]:
        console.print(f"{'yes' if one['shows'] else 'NO '}  {Finding(**one).text}", highlight=False)
    console.print(f"seconds: {results['seconds']}, of processors: {results['cpu_seconds']}", highlight=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, run, show, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write results here")
    parser.add_argument("--seeds", type=int, default=3, help="how many [default: 3]")
    parser.add_argument("--work", type=Path, default=Path("demo_output/seeds"), help="where runs are kept")
    parser.add_argument("--quick", action="store_true", help="short runs that show nothing")
    options = parsed(parser, arguments)
    runs = [run_seed(options.work, seed, QUICK if options.quick else ()) for seed in range(options.seeds)]
    results = summarised(runs)
    show(results)
    if options.json is not None:
        command = "python -m benchmarks.demo --json benchmarks/results/demo.json" + " --quick" * options.quick
        write_json(options.json, benchmark="demo", command=command, results=results)


if __name__ == "__main__":
    main()
