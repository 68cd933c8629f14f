"""Disturb commands at every file-system call: python -m tests.trust.kills [COMMAND...] [--part 1/4]."""

import argparse
import sys
import time

from tests.trust.figures import record, workplace
from tests.trust.kills.commands import CARELESS, COMMANDS
from tests.trust.kills.disturb import FAULTS, HOWS
from tests.trust.kills.harness import Case, Harness


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def disturb(name: str, options: argparse.Namespace) -> tuple[int, int]:
    """Disturb one command; return how many cases there were, and how many of them failed."""
    part, parts = (int(word) for word in options.part.split("/"))
    hows = FAULTS if options.faults else HOWS
    # Where files cost nothing to make durable, if there is such a place; thousands of runs do.
    with workplace() as directory:
        start = time.monotonic()
        harness = Harness(CARELESS if name == CARELESS.name else COMMANDS[name], directory)
        chosen: list[Case] = [(point,) for point in harness.points(hows)[:: options.every]]
        chosen += harness.random_kills(options.random, options.seed)
        chosen += harness.pairs(options.pairs, options.seed, hows)
        chosen = chosen[part - 1 :: parts]
        failed = 0
        for case in chosen:
            what = harness.failure(case)
            if what is not None:
                say(f"{name} at {case}: {what}")
                failed += 1
        seconds = time.monotonic() - start
    say(f"{name}: {len(harness.calls)} calls, {len(chosen)} cases in {seconds:.0f} s")
    say(f"  {failed} of {len(chosen)} cases failed")
    if options.record:
        facts = {
            "cases": len(chosen),
            "findings": failed,
            "calls": len(harness.calls),
            "every": options.every,
            "random": options.random,
            "pairs": options.pairs,
            "of": parts,
            "seconds": round(seconds),
        }
        record(f"{'faults' if options.faults else 'kills'} {name}", options.seed, part - 1, facts)
    return len(chosen), failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", help=f"default: all of {', '.join(COMMANDS)}")
    parser.add_argument("--pairs", type=int, default=300, help="pairs of points of each command")
    parser.add_argument("--seed", type=int, default=0, help="of the pairs and of random kills")
    parser.add_argument("--part", default="1/1", help="only a part of the cases of each command, such as 2/4")
    parser.add_argument("--every", type=int, default=1, help="take only every n-th point")
    parser.add_argument("--random", type=int, default=0, help="kills at any moment of each command")
    parser.add_argument("--faults", action="store_true", help="a disk that fails, instead of kills")
    parser.add_argument("--record", action="store_true", help="keep the figures in figures.json")
    options = parser.parse_args()
    counts = [disturb(name, options) for name in options.commands or COMMANDS]
    cases, failed = map(sum, zip(*counts, strict=True))
    say(f"all: {cases - failed} of {cases} cases end like an undisturbed run")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
