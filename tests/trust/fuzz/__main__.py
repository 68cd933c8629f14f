"""Fuzz every parser: `python -m tests.trust.fuzz [TARGET...] [--seconds 600]`; needs the extra `fuzz`.

Each target begins with its corpus and golden files. A crash is left in the current directory.
`--keep BYTES` adds the smallest inputs that reached something new to the corpus, up to so many bytes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.trust.figures import record
from tests.trust.fuzz.coverage import reached
from tests.trust.fuzz.targets import MOST_BYTES, TARGETS

CORPUS = Path(__file__).with_name("corpus")
_DONE = re.compile(r"Done (\d+) runs in (\d+) second")
_INTERRUPTED = 72
"""What libFuzzer exits with when somebody else ends it, which is no finding."""
_EDGES = re.compile(r"cov: (\d+)")


def fuzz(name: str, *, seconds: int, seed: int, keep: int) -> dict[str, Any]:
    """Fuzz one target; return what came of it."""
    own = CORPUS / name
    own.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        found = Path(place) / "found"
        for number, data in enumerate(TARGETS[name].seeds()):
            found.mkdir(exist_ok=True)
            (found / f"seed{number}").write_bytes(data)
        options = [f"-max_total_time={seconds}", f"-seed={seed + 1}", f"-max_len={MOST_BYTES}"]
        limits = [
            "-timeout=10",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
            f"-artifact_prefix=crash-{name}-",
        ]
        said = _atheris(name, *options, *limits, str(found), str(own))
        if said.returncode == _INTERRUPTED:
            raise SystemExit(f"{name} was interrupted")
        inputs = [path.read_bytes() for place in (found, own) for path in sorted(place.iterdir())]
        lines = reached(TARGETS[name], inputs) if not said.returncode else (0, 0)
        if keep:
            _keep(name, found, own, keep)
    runs, edges = _DONE.findall(said.stderr), _EDGES.findall(said.stderr)
    if said.returncode:
        sys.stdout.write(said.stderr[-3000:] + "\n")
    return {
        "cases": int(runs[-1][0]) if runs else 0,
        "seconds": int(runs[-1][1]) if runs else 0,
        "edges": int(edges[-1]) if edges else 0,
        "lines": lines,
        "findings": int(said.returncode != 0),
    }


def _atheris(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.trust.fuzz.one", name, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")


def _keep(name: str, found: Path, own: Path, most: int) -> None:
    """Merge what was found into the corpus, small files first."""
    with tempfile.TemporaryDirectory() as merged:
        _atheris(name, "-merge=1", merged, str(own), str(found))
        for path in own.iterdir():
            path.unlink()
        left = most
        for path in sorted(Path(merged).iterdir(), key=lambda path: (path.stat().st_size, path.name)):
            left -= path.stat().st_size
            if left < 0:
                break
            (own / path.name).write_bytes(path.read_bytes())


def main() -> int:
    """Fuzz what is asked for and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"default: all of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=600, help="for each target (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=int, default=0, metavar="BYTES", help="of each corpus")
    parser.add_argument("--record", action="store_true", help="keep the figures in figures.json")
    options = parser.parse_args()
    crashed = 0
    for name in options.targets or TARGETS:
        facts = fuzz(name, seconds=options.seconds, seed=options.seed, keep=options.keep)
        sys.stdout.write(f"{name}: {facts}\n")
        sys.stdout.flush()
        crashed += facts["findings"]
        if options.record:
            record(f"fuzz {name}", options.seed, 0, facts)
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())
