"""Running a command, disturbing it, running it again, and comparing what it leaves.

A run is a fork of this process, which has imported everything but never worked itself: starting one takes
a few milliseconds, and none knows of another.
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.trust.kills.disturb import HOWS, Disturbance, How, die

_OWN_CALL = {"short": "write", "unsynced": "fsync"}
Tree = dict[str, str]
Point = tuple[int, How]


_NO_POOL = "none"
"""What stands for the digest where there is no pool."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command to disturb.

    make: writes what the command starts from into an empty directory; called once.
    start: writes what is at the pool's place before the first run; called once, with that directory and
        where to write.
    run: called with the same two; raises if the command fails.
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

    died: bool
    error: str
    clean: bool
    calls: tuple[str, ...]
    modules: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A case that went wrong."""

    command: str
    points: tuple[Point, ...]
    what: str


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
        made = self._forked(lambda: command.make(self._source), Disturbance())
        if made.died or made.error:
            raise RuntimeError(f"{command.name} has nothing to start from: {made.error}")
        if command.start is not None:
            start = command.start
            self._forked(lambda: start(self._source, self._start), Disturbance())
        self._begin()
        self._whole: set[str] = {_digest(self._out), *([_NO_POOL] if command.replaces else [])}
        # A rehearsal: what it imports on its way, every run would import; for a student that is most of its
        # work, and some modules leave files behind when they are imported.
        for module in self._undisturbed().modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        # What the collector does not look at, runs do not copy.
        gc.freeze()
        self._begin()
        began = time.monotonic()
        self.calls = self._undisturbed().calls
        self.seconds = time.monotonic() - began
        self._expected = self._tree()
        self._whole.add(_digest(self._out))

    def points(self, moments: int | None = None, hows: Sequence[How] = HOWS) -> list[Point]:
        """Return every way to disturb the command, or so many moments to kill and to interrupt it."""
        calls = len(self.calls) + 1
        if moments is None:
            return [
                (number, how)
                for number in range(1, calls + 1)
                for how in hows
                # These two wait for a call of their kind: once for each of them is enough.
                if how not in _OWN_CALL or (number < calls and self.calls[number - 1] == _OWN_CALL[how])
            ]
        chosen = sorted({1 + place * calls // moments for place in range(moments)})
        return [(number, how) for number in chosen for how in ("kill", "interrupt")]

    def failures(self, cases: Sequence[tuple[Point, ...]]) -> Iterator[Failure]:
        """Disturb runs at each case's points, one after the other, then run in peace; yield what is wrong."""
        for points in cases:
            what = self._case(points)
            if what is not None:
                yield Failure(command=self._command.name, points=points, what=what)

    def random_kills(self, count: int, seed: int) -> list[tuple[Point, ...]]:
        """Return kills at any moment of a run, the same for the same seed and length of a run."""
        draw = random.Random(f"{seed} {self._command.name} moments")
        return [((draw.randrange(1, int(self.seconds * 1e6) + 2), "moment"),) for _ in range(count)]

    def pairs(self, count: int, seed: int, hows: Sequence[How] = HOWS) -> list[tuple[Point, ...]]:
        """Return some pairs of points, the same for the same seed."""
        draw = random.Random(f"{seed} {self._command.name}")
        points = self.points(hows=hows)
        return [tuple(draw.choices(points, k=2)) for _ in range(count)]

    def _case(self, points: Sequence[Point]) -> str | None:
        self._begin()
        for at, how in points:
            disturbed = self._run(Disturbance(at=at, how=how))
            if disturbed.error and not disturbed.clean:
                return f"an error of no use: {disturbed.error}"
            if _digest(self._out) not in self._whole:
                return "what readers see is neither old nor new"
        last = self._run(Disturbance(), read_first=True)
        if last.died or last.error:
            return last.error or "died"
        found = self._tree()
        if found != self._expected:
            return _difference(found, self._expected)
        return None

    def _begin(self) -> None:
        for directory in (self._out.parent, self._temporary):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
        if self._start.exists():
            shutil.copytree(self._start, self._out)

    def _undisturbed(self) -> Outcome:
        whole = self._run(Disturbance())
        if whole.died or whole.error:
            raise RuntimeError(f"{self._command.name} fails undisturbed: {whole.error}")
        return whole

    def _run(self, disturbance: Disturbance, *, read_first: bool = False) -> Outcome:
        def work() -> None:
            if read_first:
                read_all(self._out)
            self._command.run(self._source, self._out)

        return self._forked(work, disturbance)

    def _forked(self, work: Callable[[], None], disturbance: Disturbance) -> Outcome:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _live(work, disturbance, writer, self._temporary)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            told = stream.read()
        os.waitpid(child, 0)
        if not told:
            return Outcome(died=True, error="", clean=True, calls=(), modules=())
        facts = json.loads(told)
        return Outcome(
            died=False,
            error=facts["error"],
            clean=facts["clean"],
            calls=tuple(facts["calls"]),
            modules=tuple(facts["modules"]),
        )

    def _tree(self) -> Tree:
        """Return every file and directory below the output and the place for temporary files."""
        tree: Tree = {}
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

    error, clean = "", True
    before = set(sys.modules)
    try:
        os.environ["TMPDIR"] = str(temporary)
        # Python tries the directory out with a file, which is not the command's doing.
        tempfile.tempdir = None
        tempfile.gettempdir()
        write = os.write
        disturbance.install()
        with Path(os.devnull).open() as nothing, contextlib.suppress(SystemExit):
            os.dup2(nothing.fileno(), 0)
        work()
        if disturbance.at > len(disturbance.calls) and disturbance.how == "kill":
            die()
    except Exception as problem:  # noqa: BLE001 - whatever it is, the parent is told
        clean = isinstance(problem, LabelPoolError | click.Abort)
        error = f"{type(problem).__name__}: {problem}"
        if not clean:
            error += "\n" + traceback.format_exc()
    finally:
        modules = sorted(set(sys.modules) - before)
        told = {"error": error, "clean": clean, "calls": disturbance.calls, "modules": modules}
        _write_all(line, json.dumps(told).encode(), write)
        os._exit(0)


def _write_all(line: int, data: bytes, write: Callable[[int, bytes], int]) -> None:
    while data:
        data = data[write(line, data) :]


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


def _difference(found: Tree, expected: Tree) -> str:
    more, less = sorted(set(found) - set(expected)), sorted(set(expected) - set(found))
    changed = sorted(name for name in set(found) & set(expected) if found[name] != expected[name])
    return f"left over {more}, missing {less}, changed {changed}"


def report(failures: Sequence[Failure], cases: int) -> str:
    """Return one line per kind of failure."""
    lines: list[str] = []
    kinds: dict[str, list[Failure]] = {}
    for failure in failures:
        kinds.setdefault(failure.what.splitlines()[0][:160], []).append(failure)
    for what, members in sorted(kinds.items(), key=lambda item: -len(item[1])):
        lines.append(f"  {len(members)} x {what}; e.g. {members[0].points}")
    return "\n".join([*lines, f"  {len(failures)} of {cases} cases failed"])
