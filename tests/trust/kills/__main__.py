"""Disturb commands at every file-system call: python -m tests.trust.kills [COMMAND...] [--part 1/4]."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.trust.figures import record
from tests.trust.kills.commands import CARELESS, COMMANDS
from tests.trust.kills.disturb import FAULTS, HOWS
from tests.trust.kills.harness import Failure, Harness, Point, report

MEMORY = Path("/dev/shm")  # noqa: S108
"""Where files cost nothing to make durable; thousands of runs do."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", help=f"default: all of {', '.join(COMMANDS)}")
    parser.add_argument("--pairs", type=int, default=300, help="pairs of points of each command")
    parser.add_argument("--seed", type=int, default=0, help="of the pairs and of random kills")
    parser.add_argument("--part", default="1/1", help="only a part of the cases of each command, such as 2/4")
    parser.add_argument("--every", type=int, default=1, help="take only every n-th point")
    parser.add_argument(
        "--moments", type=int, help="only so many, spread over the run, each with a kill and with Ctrl-C"
    )
    parser.add_argument("--random", type=int, default=0, help="kills at any moment of each command")
    parser.add_argument("--faults", action="store_true", help="a disk that fails, instead of kills")
    parser.add_argument("--record", action="store_true", help="keep the figures in figures.json")
    options = parser.parse_args()
    part, parts = (int(word) for word in options.part.split("/"))
    names = options.commands or list(COMMANDS)
    failures: list[Failure] = []
    cases = 0
    for name in names:
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
            start = time.monotonic()
            harness = Harness(CARELESS if name == CARELESS.name else COMMANDS[name], Path(directory))
            chosen: list[tuple[Point, ...]] = [
                (point,)
                for point in harness.points(options.moments, FAULTS if options.faults else HOWS)[
                    :: options.every
                ]
            ]
            chosen += harness.random_kills(options.random, options.seed)
            chosen += harness.pairs(options.pairs, options.seed, FAULTS if options.faults else HOWS)
            chosen = chosen[part - 1 :: parts]
            found: list[Failure] = []
            for failure in harness.failures(chosen):
                say(f"{name} at {failure.points}: {failure.what}")
                found.append(failure)
            seconds = time.monotonic() - start
            say(f"{name}: {len(harness.calls)} calls, {len(chosen)} cases in {seconds:.0f} s")
            say(report(found, len(chosen)))
            failures += found
            cases += len(chosen)
            if options.record:
                facts = {
                    "cases": len(chosen),
                    "findings": len(found),
                    "calls": len(harness.calls),
                    "every": options.every,
                    "random": options.random,
                    "pairs": options.pairs,
                    "of": parts,
                    "seconds": round(seconds),
                }
                record(f"{'faults' if options.faults else 'kills'} {name}", options.seed, part - 1, facts)
    say(f"all: {cases - len(failures)} of {cases} cases end like an undisturbed run")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
