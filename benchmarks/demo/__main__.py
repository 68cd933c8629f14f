"""The whole method on 5,000 handwritten digits, without a download: ``make demo``.

    python -m benchmarks.demo --json benchmarks/results/demo.json

Trains a small teacher and computes its class statistics. Then, with each of three seeds, it synthesises ten
images of each digit class by class (lpld) and across classes (sre2l), labels them and ten real ones, prunes
the labels 10x, encodes klt labels in as many bytes, and trains a student from each pool and one from the true
classes of the real images. It ends with a table, what the table shows and what it cannot show, and a page.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

from lpld_cli.console import stdout_console

from benchmarks.common.harness import parsed, write_json, write_whole
from benchmarks.demo.page import save_demo_page
from benchmarks.demo.run import Demo, run_demo
from benchmarks.demo.table import as_json, findings, measured_lines, show_table, what_pruning_costs

QUICK = {"epochs": 20, "teacher_epochs": 1, "iterations": 2}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, run, show, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write results here")
    parser.add_argument("--seeds", type=int, default=3, help="how many [default: 3]")
    parser.add_argument(
        "--out", type=Path, default=Path("demo_output"), help="directory [default: demo_output]"
    )
    parser.add_argument("--quick", action="store_true", help="short runs that show nothing")
    options = parsed(parser, arguments)
    start = time.monotonic()
    size = QUICK if options.quick else {}
    demos = [Demo(out=options.out, seed=seed, **size) for seed in range(options.seeds)]
    lines = measured_lines(demos, teacher=run_demo(demos))
    seconds = time.monotonic() - start
    results = as_json(lines, seconds=seconds, cpu_seconds=sum(os.times()[:4]))
    show_table(lines)
    for text in (*(finding.text for finding in findings(lines)), what_pruning_costs(lines)):
        stdout_console().print(text, highlight=False, soft_wrap=True)
    write_whole(options.out / "table.json", results)
    save_demo_page(options.out / "demo.html", demos[0], lines)
    stdout_console().print(
        f"{seconds:.0f} s; page {options.out / 'demo.html'}, commands {options.out / 'demo.log'}",
        highlight=False,
        soft_wrap=True,
    )
    if options.json is not None:
        command = "python -m benchmarks.demo --json benchmarks/results/demo.json" + " --quick" * options.quick
        write_json(options.json, benchmark="demo", command=command, results=results)


if __name__ == "__main__":
    main()
