"""The file of a pool's card, README.md, and whether it is as we wrote it.

It is no part of the pool. Its last line is a comment with the digest of what stands above, so a card that
somebody has edited, or written, is told from one that can be written again.
"""

from __future__ import annotations

import re
from pathlib import Path

from lpld_labels.errors import PoolConflictError
from lpld_labels.format.digests import bytes_digest
from lpld_labels.pool.storage import write_atomically, write_errors

CARD_FILE = "README.md"
_MARK = re.compile(rb"<!-- lpld-labels card ([0-9a-f]{64}) -->\n")


def signed(text: str) -> str:
    """Return a card with its mark."""
    return f"{text}\n<!-- lpld-labels card {bytes_digest(text.encode())} -->\n"


def is_untouched(path: Path) -> bool:
    """Whether a file is a card as it was written."""
    if path.name != CARD_FILE or not path.is_file():
        return False
    text, _, last = path.read_bytes().rpartition(b"\n<!-- ")
    mark = _MARK.fullmatch(b"<!-- " + last)
    return mark is not None and mark[1].decode() == bytes_digest(text)


def write_card(path: Path, text: str, *, overwrite: bool) -> bool:
    """Write a card; return whether it was not there yet. overwrite: also over what somebody else wrote."""
    with write_errors(path):
        if path.is_file() and path.read_bytes() == text.encode():
            return False
        if path.exists() and not overwrite and not is_untouched(path):
            raise PoolConflictError(
                "this card was edited, or somebody else wrote it",
                where=path,
                hint="choose another file (--out), or replace it (--overwrite)",
            )
    write_atomically(path, text.encode())
    return True
