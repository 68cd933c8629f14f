"""A pool's card, README.md, and whether it is unchanged since we wrote it.

It is not part of the pool. Its last line is a comment with the digest of the text above, so that an edited
card is never overwritten.
"""

from __future__ import annotations

import re
from pathlib import Path

from lpld_labels.errors import PoolConflictError
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.schema import README_FILE
from lpld_labels.io.remote import RemoteStore
from lpld_labels.io.storage import write_atomically, write_errors

_MARK = re.compile(rb"<!-- lpld-labels card ([0-9a-f]{64}) -->\n")


def signed(text: str) -> str:
    """Return a card with its digest."""
    return f"{text}\n<!-- lpld-labels card {bytes_digest(text.encode())} -->\n"


def is_ours(data: bytes) -> bool:
    """Whether these bytes are an unchanged card of ours."""
    text, _, last = data.rpartition(b"\n<!-- ")
    mark = _MARK.fullmatch(b"<!-- " + last)
    return mark is not None and mark[1].decode() == bytes_digest(text)


def is_untouched(path: Path) -> bool:
    """Whether a file is an unchanged card of ours."""
    return path.name == README_FILE and path.is_file() and is_ours(path.read_bytes())


def write_card(path: Path, text: bytes, *, overwrite: bool = False, within: Path | None = None) -> bool:
    """Write a card; return whether it was not there yet. overwrite: also replace an edited card.

    within: see `write_atomically`.
    """
    with write_errors(path):
        old = path.read_bytes() if path.exists() else None
    if _must_write(old, text, overwrite=overwrite, where=path):
        write_atomically(path, text, within=within)
        return True
    return False


def send_card(store: RemoteStore, text: bytes, *, overwrite: bool = False) -> bool:
    """Write a card to an address, as `write_card` does to a file."""
    try:
        old = store.read(README_FILE)
    except FileNotFoundError:
        old = None
    if _must_write(old, text, overwrite=overwrite, where=store.at(README_FILE)):
        store.put(README_FILE, text, digest=bytes_digest(text))
        return True
    return False


def _must_write(old: bytes | None, text: bytes, *, overwrite: bool, where: str | Path) -> bool:
    """Whether the card differs from `old`; refuse to replace an edited one."""
    if old is not None and not overwrite and old != text and not is_ours(old):
        raise PoolConflictError(
            "this card was edited, or somebody else wrote it",
            where=where,
            hint="choose another file (--out), or replace it (--overwrite)",
        )
    return old != text
