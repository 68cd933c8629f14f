"""Which files writers of pools leave, finished or not: whatever else lies there is somebody else's.

Nothing is deleted, and nothing built upon, before every name in the way is known to be ours. A manifest, or
the plan of unfinished work, proves that a directory is a pool; then names that the format allows are ours.
Without either, after a crash at some moments, only names that our own writers give are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from lpld_labels.errors import LabelPoolError, PoolConflictError
from lpld_labels.format.limits import MAX_JSON_BYTES
from lpld_labels.format.paths import PATTERNS, pool_path_problem
from lpld_labels.format.schema import (
    CODEC_DIRECTORY,
    FORMAT_NAME,
    MANIFEST_FILE,
    PACKED_DIRECTORY,
    POOL_DIRECTORIES,
    README_FILE,
    STAGING_DIRECTORY,
)
from lpld_labels.format.strict_json import from_json
from lpld_labels.io.random_access import read_regular
from lpld_labels.io.storage import TEMPORARY, refuse_links
from lpld_labels.pool.card_file import is_untouched

PLAN = "plan.json"
LOCK = "lock"
COMMIT_LOCK = "commit.lock"
CHECKPOINT_DIRECTORY = "checkpoint"
REPLACED = f"{TEMPORARY}replaced.json"
"""What the manifest is called while its pool is being deleted; it goes last."""

_SHARD = r"\d{5,}-\d{5,}-[0-9a-f]{8}"
_OURS = (
    rf"(?:views|labels)/{_SHARD}\.parquet",
    r"packed/\d{8}-[0-9a-f]{8}\.parquet",
    rf"{CODEC_DIRECTORY}/[a-z0-9_]+\.(?:npy|pco)",
    r"batches-[0-9a-f]{8}\.parquet",
    r"images\.parquet",
)
_OUR_PATHS = re.compile("|".join(_OURS))
_TEMPORARY = re.compile(rf"{re.escape(TEMPORARY)}[0-9a-f]{{32}}")
_STAGED_SHARD = re.compile(_SHARD)
_STAGED_ARRAYS = re.compile(r"[0-9a-f]{32}")
_HINT = "choose another path, or move it away: only what we wrote is ever replaced"


def require_own_files(pool: Path) -> None:
    """Refuse a directory with anything in it that is no part of a pool, finished or not, and with links."""
    if not pool.exists():
        return
    refuse_links(sorted(pool.iterdir()) if pool.is_dir() else ())
    stranger = next(_strangers(pool), None)
    if stranger is not None:
        raise PoolConflictError("something is here that is no label pool", where=stranger, hint=_HINT)


def require_own_staging(pool: Path) -> None:
    """Refuse a pool with links for directories, or a staging area that somebody else put something into."""
    refuse_links(pool / name for name in POOL_DIRECTORIES)
    directory = pool / STAGING_DIRECTORY
    if not directory.is_dir():
        return
    refuse_links(sorted(directory.iterdir()))
    stranger = next(_strangers_in_staging(directory), None)
    if stranger is not None:
        raise PoolConflictError("something is here that is no unfinished work", where=stranger, hint=_HINT)


def own_paths(paths: Sequence[str]) -> set[str]:
    """Return the paths, relative to a pool elsewhere, that are those of a pool; a card is not among them."""
    proven = MANIFEST_FILE in paths
    return {path for path in paths if path == MANIFEST_FILE or _is_own(path, proven=proven)}


def delete_unnamed(pool: Path, named: Collection[str]) -> None:
    """Delete batch indices and packed images that a manifest does not name, and nothing of anybody else."""
    for path in [*sorted(pool.glob("batches-*.parquet")), *sorted(pool.glob(f"{PACKED_DIRECTORY}/*"))]:
        name = path.relative_to(pool).as_posix()
        if name not in named and _OUR_PATHS.fullmatch(name):
            path.unlink()


def _strangers(pool: Path) -> Iterator[Path]:
    if not pool.is_dir():
        yield pool
        return
    staging = pool / STAGING_DIRECTORY
    proven = (
        _is_pool(pool / MANIFEST_FILE) or _is_pool(pool / REPLACED) or _is_document(staging / PLAN, "codec")
    )
    begun = proven or staging.is_dir() or (pool / MANIFEST_FILE).is_file()
    for entry in sorted(pool.iterdir()):
        if entry == staging and entry.is_dir():
            yield from _strangers_in_staging(entry)
        elif entry.is_dir() and entry.name in POOL_DIRECTORIES:
            inside = sorted(os.scandir(entry), key=lambda one: one.name)
            yield from (
                Path(one.path)
                for one in inside
                if not (begun and one.is_file(follow_symlinks=False))
                or not _is_own(f"{entry.name}/{one.name}", proven=proven)
            )
        elif not entry.is_file() or not (
            entry.name in (MANIFEST_FILE, REPLACED)
            or _TEMPORARY.fullmatch(entry.name)
            or (entry.name == README_FILE and is_untouched(entry))
            or (begun and _is_own(entry.name, proven=proven))
        ):
            yield entry


def _is_own(path: str, *, proven: bool) -> bool:
    if proven:
        return any(pool_path_problem(path, role) is None for role in PATTERNS)
    return _OUR_PATHS.fullmatch(path) is not None


def _strangers_in_staging(directory: Path) -> Iterator[Path]:
    planned = _is_document(directory / PLAN, "codec")
    for entry in sorted(directory.iterdir()):
        if entry.name.startswith(TEMPORARY):
            continue
        if entry.is_file():
            # What commands note down beside the plan is theirs.
            if not planned and entry.name not in (PLAN, LOCK, COMMIT_LOCK):
                yield entry
        elif entry.name == CHECKPOINT_DIRECTORY:
            yield from (one for one in sorted(entry.iterdir()) if not _STAGED_ARRAYS.fullmatch(one.name))
        elif entry.name == CODEC_DIRECTORY:
            tables = sorted(entry.iterdir()) if not planned else []
            yield from (one for one in tables if not _is_own(f"{CODEC_DIRECTORY}/{one.name}", proven=False))
        elif not _STAGED_SHARD.fullmatch(entry.name):
            yield entry


def _is_pool(path: Path) -> bool:
    return _is_document(path, "format", FORMAT_NAME)


def _is_document(path: Path, field: str, value: str | None = None) -> bool:
    """Whether a file is JSON with a field, and of this value if one is given."""
    try:
        found = from_json(read_regular(path, most=MAX_JSON_BYTES), where=str(path))
    except (OSError, LabelPoolError, ValueError):
        return False
    return isinstance(found, dict) and field in found and (value is None or found[field] == value)
