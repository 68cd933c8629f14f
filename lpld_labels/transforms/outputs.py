"""Where a command may write: one rule for all commands.

An existing output is refused, unless it is from the same job, unfinished or finished, or is to be replaced.
Only files that this project wrote are ever replaced. No output is inside an input, and no input inside an
output.
"""

from __future__ import annotations

import os
from pathlib import Path

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.io.addresses import is_address, local_path, redact

OVERWRITE_HINT = "choose another path, or replace it (--overwrite)"


def require_apart(out: str | os.PathLike[str], *inputs: str | os.PathLike[str]) -> None:
    """Refuse an output that is an input, lies inside one or has one inside it."""
    if is_address(out):
        # Pools at addresses are written as a whole, so only the same address is a conflict.
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
    """Return a path with links resolved; of an address, its text as a path."""
    try:
        return (Path(location) if is_address(location) else local_path(location)).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidArgumentError(
            f"this path leads nowhere: {error}", where=redact(location), hint="choose another path"
        ) from None


def local_directory(out: str | os.PathLike[str]) -> Path:
    """Return an output that must be a local directory as an absolute path."""
    if is_address(out):
        raise InvalidArgumentError(
            "these files are written to a directory of this machine", where=out, hint="choose a local path"
        )
    return local_path(out)
