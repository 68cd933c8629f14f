"""Accuracy under pruning: 100 classes of Tiny-ImageNet at 32 px, 10 images per class, 300 epochs.

    python -m benchmarks.accuracy --data DIRECTORY_WITH_train_AND_val --workers 2
    python -m benchmarks.accuracy --status
    python -m benchmarks.accuracy --groups a,b --results OUT.json --work WORK
    python -m benchmarks.accuracy --report --png benchmarks/results/accuracy_tiny100.png \\
        --sheet benchmarks/results/accuracy_tiny100_images.png

You can stop it at any time; the same command resumes. Finished cells are written to --results one by one;
--work keeps teachers, images, pools and checkpoints. Run it from a worktree of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from benchmarks.accuracy.decide import decisions
from benchmarks.accuracy.plan import FULL, GROUPS, QUICK, Plan
from benchmarks.accuracy.report import derived, show, show_status
from benchmarks.accuracy.run import Place, run_plan, say
from benchmarks.accuracy.store import Store
from benchmarks.common.harness import RESULTS, parsed

COMMAND = "python -m benchmarks.accuracy --workers 2"


def main() -> None:
    """Parse, then print the status, report, or train."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, default=RESULTS / "accuracy_tiny100.json")
    parser.add_argument("--work", type=Path, default=Path("accuracy-work"), help="teachers, images and pools")
    parser.add_argument("--data", type=Path, help="directory with train/ and val/ [default: tiny100.tar.gz]")
    parser.add_argument("--groups", default=",".join(GROUPS), help=f"of {', '.join(GROUPS)} [default: all]")
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread")
    parser.add_argument("--status", action="store_true", help="list the tasks done and left")
    parser.add_argument("--report", action="store_true", help="train nothing; write rows and claims again")
    parser.add_argument("--png", type=Path, help="draw accuracy against bytes here")
    parser.add_argument("--sheet", type=Path, help="draw some of the recovered images here")
    parser.add_argument("--quick", action="store_true", help="digits, seconds; measures nothing")
    # A status writes no results.
    arguments = parsed(parser, output="png" if "--status" in sys.argv else "results")
    groups = arguments.groups.split(",")
    unknown = set(groups) - set(GROUPS)
    if unknown:
        parser.error(f"unknown group {min(unknown)}; known are {', '.join(GROUPS)}")
    plan = QUICK if arguments.quick else FULL
    place = _place(plan, arguments)
    if arguments.status:
        show_status(plan, place.store.read(), workers=arguments.workers)
        return
    failed = 0
    if not arguments.report:
        failed = run_plan(plan, place, groups=groups, workers=arguments.workers)
    _report(place, arguments.png)
    if arguments.sheet is not None:
        _draw_images(plan, place, arguments.sheet)
    sys.exit(f"{failed} cells failed; the same command retries them" if failed else None)


def _place(plan: Plan, arguments: argparse.Namespace) -> Place:
    # Workers may start in another directory.
    work = arguments.work.resolve() / ("tiny100" + "-quick" * arguments.quick)
    command = COMMAND + " --quick" * arguments.quick
    store = Store(
        path=arguments.results.resolve(),
        scale=plan.scale,
        command=command,
        derived=partial(derived, plan, work),
    )
    return Place(store=store, work=work, data=arguments.data.resolve() if arguments.data else None)


def _draw_images(plan: Plan, place: Place, path: Path) -> None:
    from benchmarks.accuracy.kept import take
    from benchmarks.accuracy.sheet import draw_sheet

    decided = decisions(plan, place.store.read())
    if decided.iterations is None:
        say("the iterations of recovery are not decided yet")
        return
    take(place.work, plan.scale)
    kind = f"ipc{plan.scale.ipc}-{decided.iterations}-{decided.teacher}"
    draw_sheet([place.work / "images" / f"{method}-{kind}" for method in ("lpld", "sre2l")], path)


def _report(place: Place, png: Path | None) -> None:
    if not place.store.path.exists():
        say("nothing is finished yet")
        return
    place.store.rewrite()
    results = json.loads(place.store.path.read_text())["results"]
    show(results)
    if png is not None:
        from benchmarks.accuracy.chart import draw

        draw(results, png)


if __name__ == "__main__":
    main()
