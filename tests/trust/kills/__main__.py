"""Disturb commands at every file-system call: python -m tests.kills [COMMAND...] [--pairs N] [--every N]."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.kills.commands import CARELESS, COMMANDS
from tests.kills.harness import Failure, Harness, Point, report

MEMORY = Path("/dev/shm")  # noqa: S108
"""Where files cost nothing to make durable; thousands of runs do."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", help=f"default: all of {', '.join(COMMANDS)}")
    parser.add_argument("--pairs", type=int, default=300, help="pairs of points, shared by the commands")
    parser.add_argument("--seed", type=int, default=0, help="of the pairs")
    parser.add_argument("--every", type=int, default=1, help="take only every n-th point")
    options = parser.parse_args()
    names = options.commands or list(COMMANDS)
    failures: list[Failure] = []
    cases = 0
    for name in names:
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
            start = time.monotonic()
            harness = Harness(CARELESS if name == CARELESS.name else COMMANDS[name], Path(directory))
            chosen: list[tuple[Point, ...]] = [(point,) for point in harness.points()[:: options.every]]
            chosen += harness.pairs(-(-options.pairs // len(names)), options.seed)
            found = list(harness.failures(chosen))
            seconds = time.monotonic() - start
            say(f"{name}: {len(harness.calls)} calls, {len(chosen)} cases in {seconds:.0f} s")
            say(report(found, len(chosen)))
            failures += found
            cases += len(chosen)
    say(f"all: {cases - len(failures)} of {cases} cases end like an undisturbed run")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
