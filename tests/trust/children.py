"""Cases in children forked from a warm parent, and watched.

A case may end well or with a LabelPoolError. Anything else is a finding: another exception, a signal, too
much memory, too much time, a file opened where it has no business, a process started, a connection made.

A fork costs more than most cases, so a child works through many of them and says after each how it went. The
case at which a child dies or hangs is known by that, and the next child goes on after it.
"""

import contextlib
import gc
import json
import os
import resource
import select
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lpld_labels.errors import LabelPoolError

Case = TypeVar("Case")

MEGABYTE = 1 << 20
_PATIENCE, _GRACE = 6, 5.0
"""Seconds to wait for a second of work, and in any case: other work may be in the way."""
_NEVER = (
    "subprocess.",
    "os.exec",
    "os.posix_spawn",
    "os.system",
    "os.fork",
    "pty.",
    "socket.",
    "ctypes.dlopen",
)
"""Events that no file may cause: processes, connections, foreign code."""
_READABLE = (sys.prefix, sys.base_prefix, sysconfig.get_path("purelib"), *sys.path, "/proc", "/sys", "/dev")
_SYSTEM = tuple({os.path.realpath(path) for path in _READABLE if path and Path(path).is_dir()})
"""Where Python and its libraries may read: modules, and what the machine is like."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a case ended.

    kind: "well", "refused" (a LabelPoolError), or a finding: "wrong" (what the case returned), "traceback",
        "signal", "memory", "slow", "hang", "escape".
    said: the error, or what the case returned.
    megabytes: growth of memory at most. seconds: of processor time.
    """

    kind: str
    said: str
    megabytes: float = 0.0
    seconds: float = 0.0

    @property
    def finding(self) -> bool:
        return self.kind not in ("well", "refused")


def watched(
    work: Callable[[], object], *, megabytes: int, seconds: float, folders: Sequence[Path] | None = None
) -> Ending:
    """Run one case in a child; see `endings`."""
    (ending,) = endings([None], lambda _: work(), megabytes=megabytes, seconds=seconds, folders=folders)
    return ending


def endings(
    cases: Sequence[Case],
    work: Callable[[Case], object],
    *,
    megabytes: int,
    seconds: float,
    folders: Sequence[Path] | None = None,
    together: int = 200,
) -> Iterator[Ending]:
    """Yield how each case ended.

    work: returns None if all is well, or a text that says what is wrong.
    megabytes, seconds: what a case may take; seconds are of processor time, so that a busy machine is no
        finding, and a case that waits that long many times over hangs.
    folders: where alone it may open files; None not to watch.
    together: cases of one child.
    """
    # What the collector does not look at, children do not copy.
    gc.freeze()
    done = 0
    while done < len(cases):
        some = cases[done : done + together]
        child = _Child(partial(_live, some, work, megabytes, folders))
        with contextlib.closing(child):
            for _ in some:
                ending = _judged(child.ending(_PATIENCE * seconds + _GRACE), megabytes, seconds)
                done += 1
                yield ending
                if ending.kind in ("hang", "signal"):
                    break


def _judged(ending: Ending, megabytes: int, seconds: float) -> Ending:
    """Make a finding of a case that took too much."""
    if ending.finding:
        return ending
    if ending.seconds > seconds:
        return replace(ending, kind="slow", said=f"{ending.seconds:.1f} s, {ending.said}")
    if ending.megabytes > megabytes:
        return replace(ending, kind="memory", said=f"{ending.megabytes:.0f} MB, {ending.said}")
    return ending


def at_once(works: Sequence[Callable[[], object]], *, seconds: float) -> list[Ending]:
    """Run several cases side by side, begun at the same moment; return how each ended."""
    gate, opener = os.pipe()

    def live(work: Callable[[], object], line: int) -> None:
        os.close(opener)
        os.read(gate, 1)
        _tell(line, *_ending(lambda _: work(), None), 0.0, 0.0)

    children = [_Child(partial(live, work)) for work in works]
    os.close(gate)
    os.close(opener)
    until = time.monotonic() + seconds
    found = []
    for child in children:
        found.append(child.ending(max(0.0, until - time.monotonic())))
        child.close()
    return found


class _Child:
    """A fork that says, line by line, how cases ended."""

    def __init__(self, live: Callable[[int], None]) -> None:
        self._reader, writer = os.pipe()
        self._rest = b""
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._reader)
                live(writer)
            finally:
                os._exit(0)
        os.close(writer)

    def ending(self, seconds: float) -> Ending:
        """Wait so long for the end of a case."""
        began = time.monotonic()
        while b"\n" not in self._rest:
            left = max(0.0, began + seconds - time.monotonic())
            if not select.select([self._reader], [], [], left)[0]:
                os.kill(self._pid, signal.SIGKILL)
                waited = time.monotonic() - began
                return Ending(kind="hang", said=f"no end after {waited:.0f} s", seconds=waited)
            part = os.read(self._reader, 1 << 16)
            if not part:
                return Ending(kind="signal", said="it died")
            self._rest += part
        line, self._rest = self._rest.split(b"\n", 1)
        kind, said, megabytes, took = json.loads(line)
        return Ending(kind=kind, said=said, megabytes=megabytes, seconds=took)

    def close(self) -> None:
        os.close(self._reader)
        os.waitpid(self._pid, 0)


def _tell(line: int, *facts: object) -> None:
    os.write(line, json.dumps(facts).encode() + b"\n")


def _live(
    cases: Sequence[Case],
    work: Callable[[Case], object],
    megabytes: int,
    folders: Sequence[Path] | None,
    line: int,
) -> None:
    """Be the child: work, tell after each case how it went, end without any clean-up."""
    escapes: list[str] = []
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A net below the measure: what asks for far more gets none.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    ceiling = pages * resource.getpagesize() + (2 * megabytes + 1024) * MEGABYTE
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))
    if folders is not None:
        _watch(escapes, tuple(os.path.realpath(folder) for folder in folders))
    for case in cases:
        before, began = _begin_measuring(), time.process_time()
        kind, said = _ending(work, case)
        if escapes:
            kind, said = "escape", "; ".join(escapes[:5])
            escapes.clear()
        _tell(line, kind, said, (_peak() - before) / MEGABYTE, time.process_time() - began)
        gc.collect(0)


def _ending(work: Callable[[Case], object], case: Case) -> tuple[str, str]:
    try:
        found = work(case)
    except LabelPoolError as error:
        return "refused", str(error)[:500]
    except BaseException:  # noqa: BLE001 - whatever it is, the parent is told
        return "traceback", traceback.format_exc()[-3000:]
    return ("well", "") if found is None else ("wrong", str(found)[:3000])


def _watch(escapes: list[str], folders: tuple[str, ...]) -> None:
    """Write down what leaves the folders, or this process; hooks stay for good, so only in a child."""
    allowed = (*folders, *_SYSTEM)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_NEVER):
            escapes.append(f"{event} {arguments!r:.100}")
        elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            place = os.path.realpath(os.fsdecode(arguments[0]))
            if not place.startswith(allowed):
                escapes.append(f"open {place}")

    sys.addaudithook(hook)


def _begin_measuring() -> int:
    """Let the peak of memory begin at what is used now, and return it."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """Return the most bytes of memory that were used at once."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")
