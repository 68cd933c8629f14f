"""`verify --strict`: for people who got a pool from a stranger.

It runs in a child process with limits of memory and time, so that no file, however it was made, ends or fills
the caller's. It also reports what the format allows and no pool of ours has. None of that changes a label; it
is where something else could travel along, or where two programs could come to see different things: files
beside the pool, links, manifest fields that readers ignore, names of resize code that nothing here can run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, cast

from lpld_labels import errors
from lpld_labels.errors import LabelPoolError
from lpld_labels.exec.job import Progress
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.schema import MANIFEST_FILE, README_FILE, RESIZE_CODES
from lpld_labels.inspect.check_shards import CheckReport, Problem
from lpld_labels.pool.pool_files import PoolFiles
from lpld_labels.pool.sizes import pool_bytes

MEMORY_BYTES = 4 * 1024**3
"""Beyond what the child has taken when it begins. Whole pools need a few hundred MB."""
SECONDS, SECONDS_PER_MEGABYTE = 600, 1
"""Of processor time: in any case, and for each megabyte of the pool."""
_LINK = "a symbolic link, not a file"
_UNKNOWN = "file is not part of the pool"
_OUT_OF_MEMORY = 77
_FIELDS = ("problem", "where", "expected", "got", "hint")


def strict_problems(files: PoolFiles, manifest: Manifest) -> list[Problem]:
    """Return what to be wary of in a pool."""
    known = {MANIFEST_FILE, README_FILE, *(entry.path for entry in manifest.files)}
    problems = [
        Problem(file=name, message=_LINK if link else _UNKNOWN)
        for name, link in files.names()
        if link or name not in known
    ]
    return problems + [Problem(file=MANIFEST_FILE, message=text) for text in _in_manifest(files, manifest)]


def _in_manifest(files: PoolFiles, manifest: Manifest) -> Iterator[str]:
    if json.loads(files.manifest_text()) != json.loads(manifest.dump()):
        yield "holds fields that readers of this version ignore ('must_understand' is false)"
    resize = manifest.header.augmentation.resize
    if resize not in RESIZE_CODES:
        yield f"field 'augmentation.resize' names code that is not known: {resize[:100]!r}"


def check_in_child(location: str, manifest: Manifest, progress: Progress | None) -> CheckReport:
    """Check a pool strictly in a child process; its death is a problem of the pool."""
    seconds = SECONDS + SECONDS_PER_MEGABYTE * pool_bytes(manifest) // 10**6
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
    words = [sys.executable, "-m", "lpld_labels.inspect.strict", str(MEMORY_BYTES), str(seconds)]
    with subprocess.Popen(  # noqa: S603  # our own module
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as child:
        try:
            # An address may hold a password: not on a command line.
            cast("IO[str]", child.stdin).write(location)
            cast("IO[str]", child.stdin).close()
            report = _told(cast("IO[str]", child.stdout), progress)
        except BaseException:
            child.kill()
            raise
    if report is not None:
        return report
    ended = f"checking it ended the process: signal {-child.returncode}, or {seconds} s of processor time"
    if child.returncode == _OUT_OF_MEMORY:
        ended = f"checking it takes more than {MEMORY_BYTES // 1024**2} MiB of memory"
    files, size = len(manifest.files) + 1, pool_bytes(manifest)
    problem = Problem(file=MANIFEST_FILE, message=ended)
    return CheckReport(files=files, bytes=size, batches=0, rows=0, problems=(problem,))


def _told(lines: Iterable[str], progress: Progress | None) -> CheckReport | None:
    """Return what the child reports, raise its error, or return None if it ended without a word."""
    for line in lines:
        told = json.loads(line)
        if "error" in told:
            raise getattr(errors, told["kind"], LabelPoolError)(**told["error"])
        if "report" in told:
            problems = tuple(Problem(**problem) for problem in told["report"].pop("problems"))
            return CheckReport(**told["report"], problems=problems)
        if progress is not None:
            progress(told["done"], told["total"])
    return None


def _limit(memory: int, seconds: int) -> None:
    """Limit this process, where the system can."""
    try:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _child() -> int:
    from lpld_labels.inspect.check import check_here

    location = sys.stdin.read()
    _limit(int(sys.argv[1]), int(sys.argv[2]))

    def tell(**facts: object) -> None:
        sys.stdout.write(f"{json.dumps(facts)}\n")
        sys.stdout.flush()

    try:
        report = check_here(location, strict=True, progress=lambda done, total: tell(done=done, total=total))
    except LabelPoolError as error:
        tell(error={field: getattr(error, field) for field in _FIELDS}, kind=type(error).__name__)
    except MemoryError:
        return _OUT_OF_MEMORY
    else:
        tell(report=asdict(report))
    return 0


if __name__ == "__main__":
    sys.exit(_child())
