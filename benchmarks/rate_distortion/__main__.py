"""Rate against distortion: what every codec keeps of real labels, and in how many bytes.

    python -m benchmarks.rate_distortion --json OUT --png PLOT

Labels are real ImageNet-1K logits and any pool given with --pool. A basis is fitted on one half of
the batches and everything is measured on the other. Label payload, codec tables and container are listed
apart, with totals for pools of 10 thousand, 1 million and 60 million rows: a basis is paid once per pool.
With them go the speed of encoding and decoding on one thread, decoding against replaying the images it
belongs to, and what becomes of 10,450 classes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.common.harness import parsed, write_json
from benchmarks.common.label_source import REAL_LABELS
from benchmarks.common.photos import add_images_option
from benchmarks.rate_distortion.chart import draw_chart
from benchmarks.rate_distortion.claims import check_claims
from benchmarks.rate_distortion.measure import MILLION, RateDistortion
from benchmarks.rate_distortion.speed import decode_against_replay, many_classes
from lpld_labels import PoolReader


def main() -> None:
    """Measure, check, show and write."""
    parser = argparse.ArgumentParser(description="Bytes and kept information of every codec.")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--png", type=Path, help="draw the chart here")
    parser.add_argument("--quick", action="store_true", help="few settings and runs; figures are rough")
    add_images_option(parser)
    arguments = parsed(parser)
    console = Console(width=160)
    curve = RateDistortion.measure(PoolReader(REAL_LABELS), quick=arguments.quick)
    _show(console, curve)
    replay = decode_against_replay(curve, arguments.images, runs=3 if arguments.quick else 25)
    many = many_classes(classes=2100 if arguments.quick else 10_450, rows=2304 if arguments.quick else 10_240)
    claims = check_claims(curve, replay, many)
    for claim in claims:
        console.print(f"{'yes' if claim.holds else 'NO '}  {claim.text}: {claim.found}", highlight=False)
    if arguments.png:
        draw_chart(arguments.png, curve)
    if arguments.json:
        results: dict[str, Any] = {
            "curves": [curve.as_json()],
            "decode_against_replay": replay,
            "many_classes": many,
            "claims": [claim.as_json() for claim in claims],
        }
        command = "python -m benchmarks.rate_distortion --json OUT --png PLOT" + " --quick" * arguments.quick
        write_json(arguments.json, benchmark="rate_distortion", command=command, results=results)


def _show(console: Console, curve: RateDistortion) -> None:
    title = f"{curve.name}: {curve.classes} classes, {curve.rows_measured} rows measured; bytes per row"
    table = Table(title=title, title_justify="left")
    table.add_column("codec")
    for name in ("payload", "basis 1M", "container", "total 10k", "1M", "60M"):
        table.add_column(name, justify="right")
    for name in ("kept T=1", "T=4", "T=20", "top-1", "encode MB/s", "decode MB/s"):
        table.add_column(name, justify="right")
    for point in curve.points:
        size = point.sizes[MILLION]
        table.add_row(
            Text(point.name),
            f"{size.payload:.1f}",
            f"{size.tables:.2f}",
            f"{size.container:.1f}",
            *(f"{one.total:.1f}" for one in point.sizes.values()),
            *(f"{kept:.4f}" for kept in point.fidelity.kept.values()),
            f"{point.fidelity.top1:.3f}",
            f"{point.encode_rate:.0f}",
            f"{point.decode_rate:.0f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
