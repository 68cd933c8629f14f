"""Where a command may write, and what becomes of what is there: one rule for all commands.

An output that is there already is refused, unless it is the same job, half done or finished, or is to be
replaced. Only what this project writes is ever replaced. No output lies inside an input, or an input inside
an output. And one process at a time writes there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from lpld_labels.errors import InvalidArgumentError, PoolConflictError, PoolWriteError
from lpld_labels.io.addresses import is_address, local_path, redact
from lpld_labels.io.storage import write_errors

OVERWRITE_HINT = "choose another path, or replace it (--overwrite)"
# Some file systems know no locks, or none for directories; there one writer at a time is up to the user.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL)


def require_apart(out: str | os.PathLike[str], *inputs: str | os.PathLike[str]) -> None:
    """Refuse an output that is an input, lies inside one or has one inside it."""
    if is_address(out):
        # What is read there was written as a whole, and nothing is put among it: names are all that matters.
        inputs = tuple(given for given in inputs if is_address(given) and redact(given) == redact(out))
    target = _place(out)
    for given in inputs:
        if is_address(given) != is_address(out):
            continue
        source = _place(given)
        for inner, outer, how in ((target, source, "inside"), (source, target, "around")):
            if inner.is_relative_to(outer):
                relation = "the same as" if inner == outer else how
                raise InvalidArgumentError(
                    f"the output is {relation} an input, {given}",
                    where=out,
                    hint="choose a path beside it: nothing is ever written among what is read",
                )


def _place(location: str | os.PathLike[str]) -> Path:
    """Return where something is, links followed; of an address, its text as a path."""
    try:
        return (Path(location) if is_address(location) else local_path(location)).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidArgumentError(
            f"this path leads nowhere: {error}", where=redact(location), hint="choose another path"
        ) from None


def local_directory(out: str | os.PathLike[str]) -> Path:
    """Return an output that can only be a directory of this machine as an absolute path."""
    if is_address(out):
        raise InvalidArgumentError(
            "these files are written to a directory of this machine", where=out, hint="choose a local path"
        )
    return local_path(out)


@contextlib.contextmanager
def sole_writer(out: str | os.PathLike[str], *, shared: bool = False) -> Iterator[None]:
    """Let no other process write to a directory meanwhile; one that was made for it and stays empty goes.

    shared: let others write that say the same (parts of one job).
    """
    path = Path(out).absolute()
    made = _missing(path)
    with write_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY)
    try:
        _lock(descriptor, path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        try:
            yield
        finally:
            for directory in made:
                with contextlib.suppress(OSError):
                    directory.rmdir()
    finally:
        os.close(descriptor)


def _missing(path: Path) -> list[Path]:
    """Return the directories that must be made for a path, the innermost first."""
    return [directory for directory in (path, *path.parents) if not directory.exists()]


def _lock(descriptor: int, path: Path, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PoolConflictError(
            "another process is writing here",
            where=path,
            hint="wait until it is done, or stop it; then run the same command again",
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise PoolWriteError(f"cannot be locked: {error.strerror}", where=path) from None
