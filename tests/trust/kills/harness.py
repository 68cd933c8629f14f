"""Run a command, disturb it, run it again, and compare what it leaves.

A run is a fork of this process, which has imported everything but never worked itself: starting one takes
a few milliseconds, and none knows of another.
"""

import contextlib
import gc
import hashlib
import importlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.trust.kills.disturb import HOWS, Disturbance, How, die

_OWN_CALL = {"short": "write", "unsynced": "fsync"}
_NO_POOL = "none"
"""What stands for the digest where there is no pool."""
Point = tuple[int, How]
Case = tuple[Point, ...]


@dataclass(frozen=True)
class Command:
    """A command to disturb.

    make: writes what the command starts from into an empty directory; called once.
    run: called with that directory and where to write; raises if the command fails.
    start: writes what is at the pool's place before the first run; called once, with the same two.
    forget: called with where it wrote, to take out what differs from run to run before results are compared.
    replaces: whether what is there is deleted first, so that readers may find nothing for a while.
    """

    name: str
    make: Callable[[Path], None]
    run: Callable[[Path, Path], None]
    start: Callable[[Path, Path], None] | None = None
    forget: Callable[[Path], None] | None = None
    replaces: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended: died, or with an error, or well; calls it made, modules it imported."""

    died: bool = False
    error: str = ""
    clean: bool = True
    calls: Sequence[str] = ()
    modules: Sequence[str] = ()


class Harness:
    """All cases of one command, in a directory of its own."""

    def __init__(self, command: Command, directory: Path) -> None:
        # Making its first array, Arrow imports pandas if there is one: three times the work of a whole run.
        pa.array(np.zeros(1))
        self._command = command
        self._source = directory / "source"
        self._out = directory / "out" / "pool"
        self._start = directory / "start"
        self._temporary = directory / "tmp"
        self._source.mkdir(parents=True)
        self._undisturbed(lambda: command.make(self._source))
        if command.start is not None:
            start = command.start
            self._undisturbed(lambda: start(self._source, self._start))
        self._begin()
        self._whole: set[str] = {_digest(self._out), *([_NO_POOL] if command.replaces else [])}
        # A rehearsal: what it imports on its way, every run would import; for a student that is most of its
        # work, and some modules leave files behind when they are imported.
        for module in self._undisturbed(self._work).modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        # What the collector does not look at, runs do not copy.
        gc.freeze()
        self._begin()
        began = time.monotonic()
        self.calls = self._undisturbed(self._work).calls
        self.seconds = time.monotonic() - began
        self._expected = self._tree()
        self._whole.add(_digest(self._out))

    def points(self, hows: Sequence[How] = HOWS) -> list[Point]:
        """Return every way to disturb the command."""
        calls = len(self.calls) + 1
        return [
            (number, how)
            for number in range(1, calls + 1)
            for how in hows
            # These two wait for a call of their kind: once for each of them is enough.
            if how not in _OWN_CALL or (number < calls and self.calls[number - 1] == _OWN_CALL[how])
        ]

    def random_kills(self, count: int, seed: int) -> list[Case]:
        """Return kills at any moment of a run, the same for the same seed and length of a run."""
        draw = random.Random(f"{seed} {self._command.name} moments")
        return [((draw.randrange(1, int(self.seconds * 1e6) + 2), "moment"),) for _ in range(count)]

    def pairs(self, count: int, seed: int, hows: Sequence[How] = HOWS) -> list[Case]:
        """Return some pairs of points, the same for the same seed."""
        draw = random.Random(f"{seed} {self._command.name}")
        points = self.points(hows)
        return [tuple(draw.choices(points, k=2)) for _ in range(count)]

    def failure(self, case: Case) -> str | None:
        """Disturb runs at each point, one after the other, then run in peace; return what is wrong."""
        self._begin()
        for at, how in case:
            disturbed = self._forked(self._work, Disturbance(at=at, how=how))
            if disturbed.error and not disturbed.clean:
                return f"an error of no use: {disturbed.error}"
            if _digest(self._out) not in self._whole:
                return "what readers see is neither old nor new"

        def read_and_work() -> None:
            read_all(self._out)
            self._work()

        last = self._forked(read_and_work, Disturbance())
        if last.died or last.error:
            return last.error or "died"
        found, expected = self._tree(), self._expected
        if found == expected:
            return None
        changed = sorted(name for name in found.keys() & expected if found[name] != expected[name])
        more, less = sorted(found.keys() - expected), sorted(expected.keys() - found)
        return f"left over {more}, missing {less}, changed {changed}"

    def _begin(self) -> None:
        for directory in (self._out.parent, self._temporary):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
        if self._start.exists():
            shutil.copytree(self._start, self._out)

    def _work(self) -> None:
        self._command.run(self._source, self._out)

    def _undisturbed(self, work: Callable[[], None]) -> Outcome:
        whole = self._forked(work, Disturbance())
        if whole.died or whole.error:
            raise RuntimeError(f"{self._command.name} fails undisturbed: {whole.error}")
        return whole

    def _forked(self, work: Callable[[], None], disturbance: Disturbance) -> Outcome:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _live(work, disturbance, writer, self._temporary)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            told = stream.read()
        os.waitpid(child, 0)
        return Outcome(**json.loads(told)) if told else Outcome(died=True)

    def _tree(self) -> dict[str, str]:
        """Return every file and directory below the output and the place for temporary files."""
        tree: dict[str, str] = {}
        if self._command.forget is not None:
            self._command.forget(self._out)
        for root in (self._out.parent, self._temporary):
            for path in sorted(root.rglob("*")):
                name = f"{root.name}/{path.relative_to(root)}"
                tree[name] = "directory" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        return tree


def _live(work: Callable[[], None], disturbance: Disturbance, line: int, temporary: Path) -> None:
    """Be the child: work, tell how it went, end without any clean-up."""
    import click

    from lpld_labels.errors import LabelPoolError

    told: dict[str, Any] = {}
    before = set(sys.modules)
    write = os.write
    try:
        os.environ["TMPDIR"] = str(temporary)
        # Python tries the directory out with a file, which is not the command's doing.
        tempfile.tempdir = None
        tempfile.gettempdir()
        disturbance.install()
        with Path(os.devnull).open() as nothing, contextlib.suppress(SystemExit):
            os.dup2(nothing.fileno(), 0)
        work()
        if disturbance.at > len(disturbance.calls) and disturbance.how == "kill":
            die()
    except Exception as problem:  # noqa: BLE001 - whatever it is, the parent is told
        clean = isinstance(problem, LabelPoolError | click.Abort)
        error = f"{type(problem).__name__}: {problem}"
        told = {"error": error if clean else f"{error}\n{traceback.format_exc()}", "clean": clean}
    finally:
        data = json.dumps({**told, "calls": disturbance.calls, "modules": sorted(set(sys.modules) - before)})
        left = data.encode()
        while left:
            left = left[write(line, left) :]
        os._exit(0)


def read_all(pool: Path) -> None:
    """Read every batch of a pool, if there is one."""
    from lpld_labels import PoolReader

    if (pool / "pool.json").exists():
        with PoolReader(pool) as reader:
            for _ in reader:
                pass


def _digest(pool: Path) -> str:
    manifest = pool / "pool.json"
    return str(json.loads(manifest.read_bytes())["content_digest"]) if manifest.exists() else _NO_POOL
