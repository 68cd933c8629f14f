"""Fuzz every parser: `python -m tests.trust.fuzz [TARGET...] [--seconds 600]`; needs the extra `fuzz`.

Each target begins with its corpus and golden files. Seconds are of processor time, so that a busy machine
takes longer and not less. A crash is left in the current directory.
"""

import argparse
import math
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.trust.figures import record, workplace
from tests.trust.fuzz.targets import MOST_BYTES, TARGETS, reached

CORPUS = Path(__file__).with_name("corpus")
_DONE = re.compile(r"Done (\d+) runs in \d+ second")
TURN_SECONDS = 60
"""How long one process fuzzes: code that atheris has instrumented loses some hundred bytes a comparison."""
_INTERRUPTED = 72
"""What libFuzzer exits with when somebody else ends it, which is no finding."""
_EDGES = re.compile(r"cov: (\d+)")


def fuzz(name: str, *, seconds: int, seed: int) -> dict[str, Any]:
    """Fuzz one target for so many seconds of processor time; return what came of it."""
    own = CORPUS / name
    runs = edges = failed = turns = 0
    spent = 0.0
    with workplace() as place:
        found = place / "found"
        found.mkdir()
        for number, data in enumerate(TARGETS[name].seeds()):
            (found / f"seed{number}").write_bytes(data)
        # libFuzzer looks at the clock; what others took of it is given back in further turns.
        while spent < seconds and not failed:
            turns += 1
            before = _children_seconds()
            limits = f"-max_total_time={min(TURN_SECONDS, math.ceil(seconds - spent))} -seed={seed + turns}"
            limits += f" -max_len={MOST_BYTES} -timeout=10 -rss_limit_mb=2048 -artifact_prefix=crash-{name}-"
            said = _atheris(name, *limits.split(), found, own, temporary=place)
            if said.returncode == _INTERRUPTED:
                raise SystemExit(f"{name} was interrupted")
            spent += _children_seconds() - before
            runs += sum(map(int, _DONE.findall(said.stderr)))
            edges = max([edges, *map(int, _EDGES.findall(said.stderr))])
            failed = said.returncode
        if failed:
            sys.stdout.write(said.stderr[-3000:] + "\n")
        inputs = [path.read_bytes() for folder in (found, own) for path in sorted(folder.iterdir())]
        lines = (0, 0) if failed else reached(TARGETS[name], inputs)
    return {
        "cases": runs,
        "seconds": round(spent),
        "edges": edges,
        "lines": lines,
        "findings": int(failed != 0),
    }


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _atheris(name: str, *options: object, temporary: Path) -> subprocess.CompletedProcess[str]:
    """Run libFuzzer; it ends its process at once, so what a target puts aside goes with `temporary`."""
    command = [sys.executable, "-m", "tests.trust.fuzz.one", name, *map(str, options)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, errors="replace", env=environment
    )


def main() -> int:
    """Fuzz what is asked for and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"default: all of {', '.join(TARGETS)}")
    parser.add_argument(
        "--seconds", type=int, default=600, help="of processor time, each (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help="keep the figures in figures.json")
    options = parser.parse_args()
    crashed = 0
    for name in options.targets or TARGETS:
        facts = fuzz(name, seconds=options.seconds, seed=options.seed)
        sys.stdout.write(f"{name}: {facts}\n")
        sys.stdout.flush()
        crashed += facts["findings"]
        if options.record:
            record(f"fuzz {name}", options.seed, 0, facts)
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())
