"""Recognise a pool's files and its card. All other files are the user's and are never deleted or replaced.

If a valid manifest proves that a directory is a pool, we own all files with names that the format allows.
If the manifest is damaged, we own only files with names that our own writers use.

The card, README.md, is not part of the pool. Its last line is a comment with the digest of the text above,
so that an edited card is never overwritten.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from lpld_labels.errors import LabelPoolError, PoolConflictError
from lpld_labels.format import schema
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.limits import MAX_JSON_BYTES
from lpld_labels.format.strict_json import from_json
from lpld_labels.io.random_access import read_regular
from lpld_labels.io.remote import RemoteStore
from lpld_labels.io.storage import refuse_links, write_atomically, write_errors

_OUR_PATHS = re.compile(
    r"(?:views|labels)/\d{5,}-\d{5,}-[0-9a-f]{8}\.parquet"
    r"|packed/\d{8}-[0-9a-f]{8}\.parquet"
    rf"|{schema.CODEC_DIRECTORY}/[a-z0-9_]+\.(?:npy|pco)"
    r"|batches-[0-9a-f]{8}\.parquet"
    r"|images\.parquet"
)
_CARD_DIGEST = re.compile(rb"<!-- lpld-labels card ([0-9a-f]{64}) -->\n")


def require_own_files(pool: Path) -> None:
    """Refuse a directory that is read-only, has symlinks, or has files that are not part of a pool."""
    if not os.path.lexists(pool):
        return
    if not pool.stat().st_mode & stat.S_IWUSR:
        hint = f"choose another path, or make it writable first (chmod -R u+w {shlex.quote(str(pool))})"
        raise PoolConflictError("this directory is read-only, so it is not replaced", where=pool, hint=hint)
    refuse_links(sorted(pool.iterdir()) if pool.is_dir() else ())
    unknown = next(_unknown_files(pool), None)
    if unknown is not None:
        raise not_a_pool(unknown)


def not_a_pool(where: Path) -> PoolConflictError:
    """Return the error for a file or directory that must not be replaced."""
    return PoolConflictError(
        "this is not a label pool or a part of one",
        where=where,
        hint="choose another path or move this away: only files that lpld-labels wrote are replaced",
    )


def own_paths(paths: Sequence[str]) -> set[str]:
    """Return the paths that belong to a pool, except its card. paths: all file paths at an address."""
    proven = schema.MANIFEST_FILE in paths
    return {path for path in paths if path == schema.MANIFEST_FILE or _is_own(path, proven=proven)}


def delete_unnamed(pool: Path, named: Collection[str]) -> None:
    """Delete our batch indices and packed images, but keep those in `named`, the paths in the manifest."""
    for path in [*sorted(pool.glob("batches-*.parquet")), *sorted(pool.glob(f"{schema.PACKED_DIRECTORY}/*"))]:
        name = path.relative_to(pool).as_posix()
        if name not in named and _OUR_PATHS.fullmatch(name):
            path.unlink()


def _unknown_files(pool: Path) -> Iterator[Path]:
    if not (pool / schema.MANIFEST_FILE).is_file():
        yield pool
        return
    proven = bool(read_document(pool / schema.MANIFEST_FILE, schema.FORMAT_NAME))
    for entry in sorted(pool.iterdir()):
        if entry.is_dir() and entry.name in schema.POOL_DIRECTORIES:
            for inside in sorted(os.scandir(entry), key=lambda one: one.name):
                plain = inside.is_file(follow_symlinks=False)
                if not plain or not _is_own(f"{entry.name}/{inside.name}", proven=proven):
                    yield Path(inside.path)
        elif not entry.is_file() or not (
            entry.name == schema.MANIFEST_FILE
            or (entry.name == schema.README_FILE and is_our_card(entry.read_bytes()))
            or _is_own(entry.name, proven=proven)
        ):
            yield entry


def _is_own(path: str, *, proven: bool) -> bool:
    if proven:
        return any(schema.pool_path_problem(path, role) is None for role in schema.PATH_PATTERNS)
    return _OUR_PATHS.fullmatch(path) is not None


def read_document(path: Path, kind: str) -> dict[str, Any]:
    """Return a JSON object whose field 'format' is `kind`; an empty dict for any other file."""
    try:
        found = from_json(read_regular(path, most=MAX_JSON_BYTES), where=str(path))
    except (OSError, LabelPoolError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("format") == kind else {}


def signed_card(text: str) -> str:
    """Return a card's text with its digest appended."""
    return f"{text}\n<!-- lpld-labels card {bytes_digest(text.encode())} -->\n"


def is_our_card(data: bytes) -> bool:
    """Return whether these bytes are an unedited card that we wrote."""
    text, _, last = data.rpartition(b"\n<!-- ")
    mark = _CARD_DIGEST.fullmatch(b"<!-- " + last)
    return mark is not None and mark[1].decode() == bytes_digest(text)


def write_card(path: Path, card: bytes, *, overwrite: bool = False) -> bool:
    """Write a card; return False if the same card was already there. overwrite: replace an edited card."""
    with write_errors(path):
        old = path.read_bytes() if path.exists() else None
    if old == card:
        return False
    _require_replaceable(old, overwrite=overwrite, where=path)
    write_atomically(path, card)
    return True


def send_card(store: RemoteStore, card: bytes, *, overwrite: bool = False) -> bool:
    """Write a card to an address, as `write_card` does to a file."""
    try:
        old = store.read(schema.README_FILE)
    except FileNotFoundError:
        old = None
    if old == card:
        return False
    _require_replaceable(old, overwrite=overwrite, where=store.at(schema.README_FILE))
    store.put(schema.README_FILE, card, digest=bytes_digest(card))
    return True


def _require_replaceable(old: bytes | None, *, overwrite: bool, where: str | Path) -> None:
    if old is not None and not overwrite and not is_our_card(old):
        raise PoolConflictError(
            "this card was edited, or another program wrote it",
            where=where,
            hint="choose another file (--out), or replace it (--overwrite)",
        )
