"""Which files of a directory belong to a pool; all others are the user's.

Nothing is deleted before every name is known to be ours. If a manifest proves that a directory is a pool,
names that the format allows are ours. With a damaged manifest, only names that our writers give are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from lpld_labels.errors import LabelPoolError, PoolConflictError
from lpld_labels.format.limits import MAX_JSON_BYTES
from lpld_labels.format.schema import (
    CODEC_DIRECTORY,
    FORMAT_NAME,
    MANIFEST_FILE,
    PACKED_DIRECTORY,
    PATH_PATTERNS,
    POOL_DIRECTORIES,
    README_FILE,
    pool_path_problem,
)
from lpld_labels.format.strict_json import from_json
from lpld_labels.io.random_access import read_regular
from lpld_labels.io.storage import refuse_links
from lpld_labels.pool.card_file import is_untouched

_OURS = (
    r"(?:views|labels)/\d{5,}-\d{5,}-[0-9a-f]{8}\.parquet",
    r"packed/\d{8}-[0-9a-f]{8}\.parquet",
    rf"{CODEC_DIRECTORY}/[a-z0-9_]+\.(?:npy|pco)",
    r"batches-[0-9a-f]{8}\.parquet",
    r"images\.parquet",
)
_OUR_PATHS = re.compile("|".join(_OURS))


def require_own_files(pool: Path) -> None:
    """Refuse a directory with links or with files that are not part of a pool."""
    if not os.path.lexists(pool):
        return
    refuse_links(sorted(pool.iterdir()) if pool.is_dir() else ())
    unknown = next(_unknown_files(pool), None)
    if unknown is not None:
        raise PoolConflictError(
            "something is here that is no label pool",
            where=unknown,
            hint="choose another path, or move it away: only what we wrote is ever replaced",
        )


def own_paths(paths: Sequence[str]) -> set[str]:
    """Return the paths at an address that are those of a pool; without its card."""
    proven = MANIFEST_FILE in paths
    return {path for path in paths if path == MANIFEST_FILE or _is_own(path, proven=proven)}


def delete_unnamed(pool: Path, named: Collection[str]) -> None:
    """Delete batch indices and packed images of ours that a manifest does not name."""
    for path in [*sorted(pool.glob("batches-*.parquet")), *sorted(pool.glob(f"{PACKED_DIRECTORY}/*"))]:
        name = path.relative_to(pool).as_posix()
        if name not in named and _OUR_PATHS.fullmatch(name):
            path.unlink()


def _unknown_files(pool: Path) -> Iterator[Path]:
    if not (pool / MANIFEST_FILE).is_file():
        yield pool
        return
    proven = _is_manifest(pool / MANIFEST_FILE)
    for entry in sorted(pool.iterdir()):
        if entry.is_dir() and entry.name in POOL_DIRECTORIES:
            for inside in sorted(os.scandir(entry), key=lambda one: one.name):
                plain = inside.is_file(follow_symlinks=False)
                if not plain or not _is_own(f"{entry.name}/{inside.name}", proven=proven):
                    yield Path(inside.path)
        elif not entry.is_file() or not (
            entry.name == MANIFEST_FILE
            or (entry.name == README_FILE and is_untouched(entry))
            or _is_own(entry.name, proven=proven)
        ):
            yield entry


def _is_own(path: str, *, proven: bool) -> bool:
    if proven:
        return any(pool_path_problem(path, role) is None for role in PATH_PATTERNS)
    return _OUR_PATHS.fullmatch(path) is not None


def _is_manifest(path: Path) -> bool:
    try:
        found = from_json(read_regular(path, most=MAX_JSON_BYTES), where=str(path))
    except (OSError, LabelPoolError, ValueError):
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT_NAME
