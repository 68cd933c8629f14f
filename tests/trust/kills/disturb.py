"""Disturbing a process at its n-th change of the file system.

Patches, in a process that is thrown away afterwards, everything of `os`, `io` and pyarrow by which the
project changes files. Calls are counted; at the chosen one the process is killed, or the call fails.
Files that Python opens, and Parquet files, are wrapped so that every write is a call of its own.
"""

import builtins
import errno
import io
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow.parquet as pq

How = Literal[
    "kill", "interrupt", "tear", "fail", "full", "moment", "quota", "short", "unsynced", "readonly", "slow"
]
"""kill: before the call. interrupt: Ctrl-C before it. tear: in the middle of a write (other calls: after
it). fail: the call fails with EIO. full: this and all later calls that need room fail with ENOSPC, writes
after half of their bytes. moment: killed so many microseconds after the start, whatever it does then.

quota: as full, with EDQUOT. short: a write takes half of its bytes and says so. unsynced: from here on fsync
fails with EIO. readonly: from here on nothing can be changed (EROFS). slow: from here on every call waits."""
HOWS: tuple[How, ...] = ("kill", "interrupt", "tear", "fail", "full")
FAULTS: tuple[How, ...] = ("fail", "full", "quota", "short", "unsynced", "readonly", "slow")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_NEED_ROOM = ("open", "write", "fsync", "mkdir")
_LASTING: dict[How, tuple[tuple[str, ...] | None, int]] = {
    "full": (_NEED_ROOM, errno.ENOSPC),
    "quota": (_NEED_ROOM, errno.EDQUOT),
    "unsynced": (("fsync",), errno.EIO),
    "readonly": (None, errno.EROFS),
}
"""Faults that stay: which calls they meet (all, if None), and what these fail with."""
_SLOW_SECONDS = 0.002


@dataclass(kw_only=True)
class Disturbance:
    """What happens at which call; `at` is 0 to count calls only.

    calls: how many there have been, by name.
    """

    at: int = 0
    how: How = "kill"

    def __post_init__(self) -> None:
        self.calls: list[str] = []
        self._lock = threading.Lock()

    def meet(self, name: str, whole: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        """Carry out a call, or what is to happen instead of it."""
        with self._lock:
            self.calls.append(name)
            number = len(self.calls)
            if number == self.at and self.how == "kill":
                die()
            if number == self.at and self.how == "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
            if number == self.at and self.how == "tear":
                (half or whole)()
                die()
            if number == self.at and self.how == "fail":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if number == self.at and self.how == "short" and half is not None:
                return half()
            if 0 < self.at <= number:
                self._last(name, half)
        return whole()

    def _last(self, name: str, half: Callable[[], Any] | None) -> None:
        """Let a call meet a fault that has come to stay."""
        if self.how == "slow":
            time.sleep(_SLOW_SECONDS)
        met, code = _LASTING.get(self.how, ((), 0))
        if met is None or name in met:
            if half is not None and self.how != "readonly":
                half()
            raise OSError(code, os.strerror(code))

    def install(self) -> None:
        """Patch this process for good."""
        if self.how == "moment":
            threading.Thread(target=self._die_later, daemon=True).start()
        for name in ("rename", "replace", "unlink", "remove", "mkdir", "rmdir", "fsync", "truncate", "link"):
            self._patch_os(name)
        self._patch_os("open", only=lambda path, flags, *_args, **_more: bool(flags & _WRITING))
        write = os.write

        def patched(fd: int, data: Any) -> Any:
            return self.meet("write", lambda: write(fd, data), lambda: write(fd, data[: len(data) // 2]))

        os.write = patched
        self._patch_opening()
        self._patch_parquet()

    def _die_later(self) -> None:
        time.sleep(self.at / 1e6)
        die()

    def _patch_os(self, name: str, only: Callable[..., bool] | None = None) -> None:
        real = getattr(os, name)

        def patched(*args: Any, **more: Any) -> Any:
            if only is not None and not only(*args, **more):
                return real(*args, **more)
            return self.meet(name, lambda: real(*args, **more))

        setattr(os, name, patched)

    def _patch_opening(self) -> None:
        real = io.open

        def patched(file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
            if not set(mode) & set("wax+"):
                return real(file, mode, *args, **more)
            opened = self.meet("open", lambda: real(file, mode, *args, **more))
            # Buffered as ever: a Parquet file has dozens of little writes, and none of them is special.
            binary = "b" in mode
            file = _File(opened, self, binary=binary)
            return io.BufferedWriter(file, 1 << 24) if binary else file

        io.open = builtins.open = patched

    def _patch_parquet(self) -> None:
        real = pq.ParquetWriter.__init__

        def patched(writer: Any, where: Any, *args: Any, **more: Any) -> None:
            if isinstance(where, str | os.PathLike):
                handle = io.open(where, "wb")  # noqa: SIM115, UP020
                real(writer, handle, *args, **more)
                writer.file_handle = handle
            else:
                real(writer, where, *args, **more)

        setattr(pq.ParquetWriter, "__init__", patched)  # noqa: B010  # mypy refuses the plain form


class _File(io.RawIOBase):
    """A file whose writes are counted; nothing waits in a buffer."""

    def __init__(self, file: Any, disturbance: Disturbance, *, binary: bool) -> None:
        self._file, self._disturbance, self._binary = file, disturbance, binary

    def write(self, data: Any) -> int:
        def put(part: Any) -> int:
            written = self._file.write(part)
            self._file.flush()
            return int(written)

        # Who writes text is never told of a part: Python itself writes the rest.
        unheard = self._disturbance.how == "short" and not self._binary
        half = None if unheard else lambda: put(data[: len(data) // 2])
        written: int = self._disturbance.meet("write", lambda: put(data), half)
        return written

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def tell(self) -> int:
        return int(self._file.tell())

    def fileno(self) -> int:
        return int(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        super().close()


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()
