"""What the format allows and no pool of ours has: reported for people who got a pool from a stranger.

None of it changes a label. It is where something else could travel along, or where two programs could come
to see different things: files beside the pool, links, manifest fields that readers ignore, bytes of Parquet
files that belong to no column, names of resize code that nothing here can run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

from lpld_labels.format.files import FileEntry
from lpld_labels.format.schema import (
    BATCH_SCHEMA,
    IMAGE_SCHEMA,
    MANIFEST_FILE,
    PACKED_SCHEMA,
    README_FILE,
    RESIZE_CODES,
    VIEW_SCHEMA,
)
from lpld_labels.inspect.check_shards import Problem
from lpld_labels.io.footers import MAGIC
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard_files import label_schema


def strict_problems(pool: PoolReader, damaged: set[str]) -> list[Problem]:
    """Return what to be wary of in a pool. damaged: files not to look into."""
    known = {MANIFEST_FILE, README_FILE, *(entry.path for entry in pool.manifest.files)}
    problems = [Problem(file=name, message=message) for name, message in pool.files.beside(known)]
    problems += [Problem(file=MANIFEST_FILE, message=message) for message in _in_manifest(pool)]
    for entry in pool.manifest.files:
        gap = None if entry.role == "codec" or entry.path in damaged else _gap(pool, entry)
        if gap is not None:
            problems.append(Problem(file=entry.path, message=gap))
    return problems


def _in_manifest(pool: PoolReader) -> Iterator[str]:
    stated = json.loads(pool.files.manifest_text())
    if stated != json.loads(pool.manifest.dump()):
        yield "holds fields that readers of this version ignore ('must_understand' is false)"
    resize = pool.header.augmentation.resize
    if resize not in RESIZE_CODES:
        yield f"field 'augmentation.resize' names code that is not known: {resize[:100]!r}"


def _gap(pool: PoolReader, entry: FileEntry) -> str | None:
    """Return where a Parquet file has bytes that belong to no column and not to the footer."""
    schemas = {
        "views": VIEW_SCHEMA,
        "images": IMAGE_SCHEMA,
        "batches": BATCH_SCHEMA,
        "packed": PACKED_SCHEMA,
        "labels": label_schema(pool.codec, pool.classes),
    }
    footer = pool.open_parquet(entry, schemas[entry.role]).footer
    end = entry.bytes - (entry.footer_bytes or 0)
    places = sorted((chunk.start, chunk.start + chunk.bytes) for chunk in footer.chunks() if chunk.bytes)
    for (_, before), (after, _) in pairwise([(0, len(MAGIC)), *places, (end, end)]):
        if before != after:
            return f"bytes {before} to {after} belong to no column"
    return None
