"""How many pieces a job may have: they are listed before the first is done, so a slip of the hand is told."""

from __future__ import annotations

from lpld_labels.errors import InvalidArgumentError

MAX_PIECES = 1 << 24
"""Label batches of a build before pruning, or images of a recovery: a list of them takes up to 2 GB."""


def require_listable(count: int, *, what: str, hint: str) -> None:
    """Refuse a job of more pieces than are ever listed. what: the pieces, as in "label batches"."""
    if count > MAX_PIECES:
        raise InvalidArgumentError(
            f"too many {what} for one job", expected=f"at most {MAX_PIECES}", got=count, hint=hint
        )
