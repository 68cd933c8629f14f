"""What a pruning costs, from every pruning whose cost is known: the paper's tables and our own cells.

    python -m benchmarks.pruning_law
    python -m benchmarks.pruning_law --json benchmarks/results/pruning_law.json --png OUT.png

Trains nothing: it reads the results of `benchmarks.accuracy`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common.harness import RESULTS, parsed, write_json
from benchmarks.pruning_law.fit import LEAST_LOSS, Law, errors, fit, unseen_errors, usable
from benchmarks.pruning_law.rows import Row, paper_rows, result_rows

COMMAND = (
    "python -m benchmarks.pruning_law --json benchmarks/results/pruning_law.json "
    "--png benchmarks/results/pruning_law.png"
)
OWN_RESULTS = "accuracy_tiny100.json"


def measure(results: Path) -> dict[str, Any]:
    """Fit the law to the paper's rows and those of a results folder; judge it by data it has not seen."""
    known = usable([*paper_rows(), *result_rows(results / OWN_RESULTS)])
    used = [row for row in known if row.settled]
    law = fit(used)
    unseen = unseen_errors(used)
    return {
        "law": "loss = 1 - exp(-scale * views_before ** -views_exponent * (ratio - 1) ** ratio_exponent)",
        "scale": round(law.scale, 4),
        "views_exponent": round(law.views_exponent, 3),
        "ratio_exponent": round(law.ratio_exponent, 3),
        "log_error_of_the_fit": round(law.log_error, 3),
        "log_error_on_unseen_data": round(float(np.sqrt(np.mean(np.square([*unseen.values()])))), 3),
        "unseen": {data: round(error, 3) for data, error in unseen.items()},
        "least_loss": LEAST_LOSS,
        "rows": _judged(law, used),
        "of_few_students": _judged(law, [row for row in known if row not in used]),
    }


def _judged(law: Law, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows with what the law makes of them."""
    return [
        {**asdict(row), "loss": round(row.loss, 4), "measured_to_expected": round(float(np.exp(error)), 3)}
        for row, error in zip(rows, errors(law, rows), strict=True)
    ]


def show(results: dict[str, Any]) -> None:
    """Print rows and constants."""
    table = Table(title="Accuracy lost to pruning, by distinct views of a class")
    for heading in ("data", "IPC", "ratio", "views per class", "lost", "measured / expected"):
        table.add_column(heading, justify="left" if heading == "data" else "right")
    rows = [*results["rows"], *results["of_few_students"]]
    for row in sorted(rows, key=lambda row: float(row["views"])):
        cells = (str(row["ipc"]), f"{row['ratio']:g}x", f"{row['views']:.0f}", f"{row['loss']:.1%}")
        table.add_row(row["data"], *cells, f"{row['measured_to_expected']:.2f}")
    console = Console()
    console.print(table)
    factor = np.exp(results["log_error_on_unseen_data"])
    console.print(
        f"scale {results['scale']}, exponents {results['views_exponent']} and {results['ratio_exponent']}; "
        f"on data the fit has not seen the loss is off by {factor:.2f}x"
    )


def main() -> None:
    """Parse, fit, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write results here")
    parser.add_argument("--png", type=Path, help="draw the law here")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the accuracy results")
    parser.add_argument("--quick", action="store_true", help="the same: it takes a second")
    arguments = parsed(parser)
    results = measure(arguments.results)
    show(results)
    if arguments.json is not None:
        write_json(arguments.json, benchmark="pruning_law", command=COMMAND, results=results)
    if arguments.png is not None:
        from benchmarks.pruning_law.chart import draw

        draw(results, arguments.png)


if __name__ == "__main__":
    main()
