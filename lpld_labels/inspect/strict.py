"""What the format allows and no pool of ours has: reported for people who got a pool from a stranger.

None of it changes a label. It is where something else could travel along, or where two programs could come
to see different things: files beside the pool, links, manifest fields that readers ignore, bytes of Parquet
files that belong to no column, names of resize code that nothing here can run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from lpld_labels.format.schema import (
    MANIFEST_FILE,
    README_FILE,
    RESIZE_CODES,
)
from lpld_labels.inspect.check_shards import Problem
from lpld_labels.pool.reader import PoolReader

_LINK = "a symbolic link, not a file"
_UNKNOWN = "file is not part of the pool"


def strict_problems(pool: PoolReader) -> list[Problem]:
    """Return what to be wary of in a pool."""
    known = {MANIFEST_FILE, README_FILE, *(entry.path for entry in pool.manifest.files)}
    problems = [
        Problem(file=name, message=_LINK if link else _UNKNOWN)
        for name, link in pool.files.names()
        if link or name not in known
    ]
    problems += [Problem(file=MANIFEST_FILE, message=message) for message in _in_manifest(pool)]
    return problems


def _in_manifest(pool: PoolReader) -> Iterator[str]:
    stated = json.loads(pool.files.manifest_text())
    if stated != json.loads(pool.manifest.dump()):
        yield "holds fields that readers of this version ignore ('must_understand' is false)"
    resize = pool.header.augmentation.resize
    if resize not in RESIZE_CODES:
        yield f"field 'augmentation.resize' names code that is not known: {resize[:100]!r}"
