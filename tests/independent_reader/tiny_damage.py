"""Ways to damage a tiny pool; where it says so, the manifest is written again and fits the damaged files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq

from .tiny_pool import TABLE, VIEWS, TinyPool, write

Change = Callable[[TinyPool], None]


def rewrite(pool: TinyPool, path: str, change: Callable[[list[dict[str, Any]]], None], **more: Any) -> None:
    """Change rows of a file and write it and the manifest again."""
    table = pq.read_table(pool.root / path)
    rows = table.to_pylist()
    change(rows)
    kind = VIEWS if path.startswith("views") else TABLE if path == "images.parquet" else table.schema
    payload = tuple(f.name for f in pool.payload.fields) if path.startswith("labels") else ()
    write(pool.root / path, [rows], kind, payload)
    if payload:
        relocate(pool)
    pool.write_manifest(**more)


def relocate(pool: TinyPool) -> None:
    """Write the index again for the first labels file as it is."""
    pool.locate(0)
    pool.write_index()


def view(row: int, **values: Any) -> Change:
    """Make a change of one row of the first views file (of epoch 0: CutMix) or the second (from 10 on)."""
    path = f"views/s{row // 10}.parquet"
    return lambda pool: rewrite(pool, path, lambda rows: rows[row % 10].update(values))


def image(row: int, **values: Any) -> Change:
    """Make a change of one row of the image table."""
    return lambda pool: rewrite(pool, "images.parquet", lambda rows: rows[row].update(values))


def label(row: int, **values: Any) -> Change:
    """Make a change of one row of a labels file."""
    return lambda pool: rewrite(pool, "labels/s0.parquet", lambda rows: rows[row].update(values))


def index(row: int, **values: Any) -> Change:
    """Make a change of one row of the batch index."""

    def change(pool: TinyPool) -> None:
        """Change it and write index and manifest again."""
        pool.index[row].update(values)
        pool.write_index()
        pool.write_manifest()

    return change


def field(path: str, value: Any) -> Change:
    """Make a change of one field of the manifest, named with dots."""

    def change(pool: TinyPool) -> None:
        """Change it."""
        manifest = pool.manifest()
        at: Any = manifest
        *names, last = [int(name) if name.isdigit() else name for name in path.split(".")]
        for name in names:
            at = at[name]
        if value is ...:
            del at[last]
        else:
            at[last] = value
        (pool.root / "pool.json").write_text(json.dumps(manifest))

    return change


def manifest_text(old: str, new: str) -> Change:
    """Make a change of the manifest's text."""

    def change(pool: TinyPool) -> None:
        """Change it."""
        found = (pool.root / "pool.json").read_text()
        assert old in found
        (pool.root / "pool.json").write_text(found.replace(old, new, 1))

    return change


def damage(path: str, position: int, resign: bool) -> Change:
    """Make a change of one byte of a file."""

    def change(pool: TinyPool) -> None:
        """Change it, and the manifest with it where asked for."""
        data = bytearray((pool.root / path).read_bytes())
        data[position] ^= 64
        (pool.root / path).write_bytes(data)
        if resign:
            pool.write_manifest()

    return change


def without_crc(pool: TinyPool) -> None:
    """Write a views file without page checksums."""
    table = pq.read_table(pool.root / "views/s0.parquet", schema=VIEWS)
    pq.write_table(table.cast(VIEWS), pool.root / "views/s0.parquet", compression="zstd")
    pool.write_manifest()


def compressed_payload(pool: TinyPool) -> None:
    """Write a labels file whose payload is compressed."""
    schema = pq.read_schema(pool.root / "labels/s0.parquet")
    table = pq.read_table(pool.root / "labels/s0.parquet", schema=schema)
    coding: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(table, pool.root / "labels/s0.parquet", **coding)
    relocate(pool)
    pool.write_manifest()


def link_out(pool: TinyPool) -> None:
    """Move a file out of the pool and link it."""
    target = pool.root.parent / f"{pool.root.name}-outside"
    (pool.root / "labels/s0.parquet").rename(target)
    (pool.root / "labels/s0.parquet").symlink_to(target)


def table(name: str, data: bytes) -> Change:
    """Make another codec table."""

    def change(pool: TinyPool) -> None:
        """Write it and the manifest again."""
        (pool.root / "codec" / name).write_bytes(data)
        pool.write_manifest()

    return change


def packed(**values: Any) -> Change:
    """Make a change of the first packed image."""
    return lambda pool: rewrite(pool, "packed/p0.parquet", lambda rows: rows[0].update(values))


def drop_view(pool: TinyPool) -> None:
    """Drop the last row of a views file."""
    rewrite(pool, "views/s0.parquet", lambda rows: rows.__delitem__(-1))


def cut_off(pool: TinyPool) -> None:
    """Make a labels file shorter."""
    (pool.root / "labels/s1.parquet").write_bytes(b"PAR1")


def left_over(pool: TinyPool) -> None:
    """Leave a file in `labels/`."""
    (pool.root / "labels/s2.parquet").write_bytes(b"x")


def linked_manifest(pool: TinyPool) -> None:
    """Move the manifest out of the pool and link it."""
    target = pool.root.parent / f"{pool.root.name}.json"
    (pool.root / "pool.json").rename(target)
    (pool.root / "pool.json").symlink_to(target)


def byte_order_mark(pool: TinyPool) -> None:
    """Begin the manifest with a byte order mark."""
    data = (pool.root / "pool.json").read_bytes()
    (pool.root / "pool.json").write_bytes(b"\xef\xbb\xbf" + data)


def moved(row: int, offset: int, size: int) -> Change:
    """Make a change of where the index says that a batch's payload lies."""

    def change(pool: TinyPool) -> None:
        """Change it and write index and manifest again."""
        found = pool.index[row]
        values = {"group_offset": offset, "group_bytes": size, "label_bytes": size}
        index(row, **{name: found[name] + more for name, more in values.items()})(pool)

    return change


def shifted(pool: TinyPool) -> None:
    """Move a label from one row of a batch into the next."""

    def change(rows: list[dict[str, Any]]) -> None:
        """Move it."""
        rows[1]["labels"].append(rows[0]["labels"].pop())

    rewrite(pool, "labels/s0.parquet", change)
