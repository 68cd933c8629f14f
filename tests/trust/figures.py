"""What campaigns found: counted, said, and kept in figures.json for docs/trust.md."""

import argparse
import contextlib
import fcntl
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.trust.children import Ending

FILE = Path(__file__).with_name("figures.json")
_NO_CODE = (":/", ":(top,exclude)docs/trust.md", ":(top,exclude)tests/trust/figures.json")
_LIBRARIES = ("numpy", "pyarrow", "pillow", "torch", "zstandard", "pcodec")


@dataclass(kw_only=True)
class Tally:
    """How many cases ended how; what the hungriest and the slowest took; the findings."""

    kinds: Counter[str] = field(default_factory=Counter)
    megabytes: float = 0.0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)

    def add(self, case: object, ending: Ending) -> None:
        """Count a case."""
        self.kinds[ending.kind] += 1
        self.megabytes = max(self.megabytes, ending.megabytes)
        self.seconds = max(self.seconds, ending.seconds)
        if ending.finding:
            self.findings.append(f"{ending.kind}: {case}: {ending.said}")

    def facts(self) -> dict[str, Any]:
        return {
            "cases": sum(self.kinds.values()),
            "kinds": dict(sorted(self.kinds.items())),
            "findings": len(self.findings),
            "megabytes": round(self.megabytes, 1),
            "seconds": round(self.seconds, 2),
        }


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """Give a directory for cases, in memory where there is such a place."""
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


def parser(description: str, *, cases: int) -> argparse.ArgumentParser:
    """Return a parser of what all campaigns are told."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("cases", type=int, nargs="?", default=cases, help="how many (default: %(default)s)")
    found.add_argument("--seed", type=int, default=0, help="what the cases are drawn from")
    found.add_argument("--record", action="store_true", help=f"keep the figures in {FILE.name}")
    return found


def finish(name: str, options: argparse.Namespace, facts: dict[str, Any], findings: list[str]) -> int:
    """Say what came of a campaign, keep it if that is wanted, and return the exit code."""
    said = {"campaign": name, "seed": options.seed, **facts}
    shown = "".join(f"FOUND {finding[:200]} ... {finding[-700:]}\n" for finding in findings[:20])
    sys.stdout.write(shown + json.dumps(said) + "\n")
    if options.record:
        record(name, options.seed, 0, facts)
    return 1 if findings else 0


def commit() -> str:
    """Return the commit that is checked out, marked where code differs."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=FILE.parent, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return git("rev-parse", "HEAD")[:12] + (
        "+changes" if git("status", "--porcelain", "--", *_NO_CODE) else ""
    )


def record(name: str, seed: int, first: int, facts: dict[str, Any]) -> None:
    """Put a campaign, or part number `first` of it, into the file.

    It replaces what is there of the campaign but for other parts of the same division ("of").
    """
    about = {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "libraries": {library: version(library) for library in _LIBRARIES},
    }
    # Parts of a campaign may run side by side.
    with FILE.open("a+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        kept = json.loads(stream.read() or "{}")
        new = {"seed": seed, "first": first, **facts, **about}
        others = [part for part in kept.get(name, []) if part.get("of") == new.get("of")]
        parts = [part for part in others if part["first"] != first]
        kept[name] = sorted([*parts, new], key=lambda part: part["first"])
        stream.truncate(0)
        stream.write(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
