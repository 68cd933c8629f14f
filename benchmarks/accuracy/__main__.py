"""The paper's accuracy tables at a scale that a laptop can run: tiny20, or digits with --quick.

    python -m benchmarks.accuracy --workers 2 --json benchmarks/results/accuracy.json
    python -m benchmarks.accuracy --groups main,metrics
    python -m benchmarks.accuracy --scale tiny100 --help
    python -m benchmarks.accuracy --data DIRECTORY_WITH_train_AND_val --epochs 300

Every student is a cell that is trained once and remembered in --cells; run the same command again to
go on where it stopped. What is there is reported at any time with --report.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.accuracy.cells import SCALES, Scale
from benchmarks.accuracy.plan import GROUPS, planned, quick_cells
from benchmarks.accuracy.report import report, show
from benchmarks.accuracy.run import read_records, run_cells
from benchmarks.common.harness import RESULTS, parsed, write_json


def main() -> None:
    """Start the scale that is asked for."""
    chooser = argparse.ArgumentParser(add_help=False)
    chooser.add_argument("--scale", choices=["tiny20", "tiny100"], default="tiny20")
    if chooser.parse_known_args()[0].scale == "tiny100":
        from benchmarks.accuracy.tiny100.main import main as tiny100

        tiny100(sys.argv[1:])
    else:
        tiny20()


def tiny20() -> None:
    """Parse, train, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", choices=["tiny20", "tiny100"], help="tiny100 has options of its own")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--png", type=Path, help="draw accuracy against bytes here")
    parser.add_argument("--cells", type=Path, help="finished cells [default: results/accuracy_cells.jsonl]")
    parser.add_argument("--work", type=Path, default=Path("accuracy-work"), help="teacher, images and pools")
    parser.add_argument("--data", type=Path, help="directory with train/ and val/ instead of tiny20")
    parser.add_argument("--epochs", type=int, help="label and training epochs of the scale")
    parser.add_argument("--groups", default=",".join(GROUPS), help=f"of {', '.join(GROUPS)} [default: all]")
    parser.add_argument("--seeds", type=int, default=3, help="of the main table; other tables have one")
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--quick", action="store_true", help="digits, one small cell of each kind")
    arguments = parsed(parser)
    scale = _scale(arguments)
    cells_file = arguments.cells or RESULTS / "accuracy_cells.jsonl"
    groups = [name for name in arguments.groups.split(",") if name]
    unknown = set(groups) - set(GROUPS)
    if unknown:
        parser.error(f"unknown group {min(unknown)}; known are {', '.join(GROUPS)}")
    cells = quick_cells(scale) if arguments.quick else planned(scale, groups, seeds=arguments.seeds)
    if arguments.report:
        records = read_records(cells_file, scale)
    else:
        records = run_cells(
            cells_file,
            scale,
            cells,
            work=arguments.work / scale.dataset,
            data=arguments.data,
            workers=arguments.workers,
        )
    results = report(scale, records, work=arguments.work / scale.dataset)
    show(results)
    if arguments.json is not None:
        write_json(arguments.json, benchmark="accuracy", command=_command(arguments), results=results)
    if arguments.png is not None:
        from benchmarks.accuracy.chart import draw

        draw(results, arguments.png)


def _command(arguments: argparse.Namespace) -> str:
    """Return what repeats the measurement: the options that decide results, without paths of this machine."""
    words = ["python -m benchmarks.accuracy --workers 2"]
    words += ["--quick"] if arguments.quick else []
    words += [f"--epochs {arguments.epochs}"] if arguments.epochs is not None else []
    words += [f"--groups {arguments.groups}"] if arguments.groups != ",".join(GROUPS) else []
    return " ".join([*words, f"--json benchmarks/results/{arguments.json.name}"])


def _scale(arguments: argparse.Namespace) -> Scale:
    """Return the scale that was asked for."""
    scale = SCALES["digits" if arguments.quick else "tiny20"]
    if arguments.data is not None:
        scale = replace(scale, dataset=arguments.data.name)
    return scale if arguments.epochs is None else replace(scale, epochs=arguments.epochs)


if __name__ == "__main__":
    main()
