"""Where a command may write: one rule for all commands.

An existing output is refused, unless the same command wrote it or --overwrite is given. Unfinished output is
resumed. Only files that this project wrote are ever replaced. Inputs and outputs never contain each other.
"""

from __future__ import annotations

from pathlib import Path

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.io.addresses import Location, is_address, local_path, normalize_url, redact

OVERWRITE_HINT = "choose another path, or replace the output (--overwrite)"


def require_apart(out: Location, *inputs: Location) -> None:
    """Refuse an output that is an input, is inside an input or contains an input."""
    for given in inputs:
        relation = _relation(out, given)
        if relation is not None:
            raise InvalidArgumentError(
                f"the output is {relation} an input, {given}",
                where=out,
                hint="choose a path beside the input",
            )


def _relation(out: Location, given: Location) -> str | None:
    if is_address(out) or is_address(given):
        both = is_address(out) and is_address(given)
        same = both and normalize_url(redact(out)) == normalize_url(redact(given))
        return "the same as" if same else None
    target, source = pool_path(out), pool_path(given)
    if target == source:
        return "the same as"
    if target.is_relative_to(source):
        return "inside"
    return "a parent of" if source.is_relative_to(target) else None


def pool_path(out: Location) -> Path:
    """Return the absolute path of an output without symlinks, so that OUT.partial is beside the target."""
    try:
        return local_path(out).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidArgumentError(
            f"this path cannot be resolved: {error}", where=out, hint="choose another path"
        ) from None


def local_directory(out: Location) -> Path:
    """Return the path of an output that must be a local directory; refuse addresses."""
    if is_address(out):
        raise InvalidArgumentError(
            "these files can only be written to a local directory", where=out, hint="choose a local path"
        )
    return local_path(out)
