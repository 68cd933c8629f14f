"""Crafted pools: golden ones with one thing changed on purpose, and the manifest made to agree."""

import io
import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lpld_labels import PoolReader
from lpld_labels.inspect.check import check_pool
from lpld_labels.inspect.summary import summarise
from tests.golden.crafting.crafted import PAYLOAD_SETTINGS, TABLE_SETTINGS, Crafted, place_groups
from tests.trust.damage.campaign import GOLDEN
from tests.trust.hostile.strange_values import FLOATS, TEXTS, strange_frame, strange_npy, strange_value
from tests.trust.signing import sign

Change = Callable[[Crafted, random.Random], None]


def crafted_pool(folder: Path, number: int, *, seed: int) -> Path:
    """Write the pool of this number below a folder, beside a canary that nobody has any business with."""
    draw = random.Random(f"{seed} pool {number}")
    outside = folder / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "canary").write_bytes(b"a secret" * 100)
    pool = Crafted(draw.choice(sorted(path.parent for path in GOLDEN.glob("*/labels"))))
    change = list(CHANGES.values())[number % len(CHANGES)]
    change(pool, draw)
    path = folder / "pool"
    pool.save(path)
    _lay_traps(path, pool, draw)
    # A reader that reads the canary, by whatever library, leaves a trace.
    os.utime(outside / "canary", (0, 0))
    return path


def use_pool(path: Path) -> None:
    """Do all that a stranger's pool might be put through."""
    canary = path.parent / "outside" / "canary"
    try:
        summarise(path)
        with PoolReader(path) as pool:
            len(pool.images)
            for number in range(len(pool)):
                pool.read(pool.index.key(number))
    finally:
        try:
            check_pool(path)
        finally:
            if canary.exists() and canary.stat().st_atime != 0:
                raise RuntimeError("the canary outside the pool was read")


def _change_manifest(pool: Crafted, draw: random.Random) -> None:
    """Put something strange into one to three fields."""
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        holder: Any = pool.manifest
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = draw.choice(keys)
            inner = holder[key]
            if not isinstance(inner, dict | list) or not inner or draw.random() < 0.2:
                action = draw.random()
                if action < 0.1:
                    del holder[key]
                elif action < 0.15 and isinstance(holder, dict):
                    holder["surprise"] = strange_value(draw, inner)
                else:
                    holder[key] = strange_value(draw, inner)
                break
            holder = inner
    pool.text = json.dumps(pool.manifest).encode("utf-8", "surrogatepass")


def _change_text(pool: Crafted, draw: random.Random) -> None:
    """Make the manifest something else than the text of one object."""
    text = json.dumps(pool.manifest)
    first = text.index('"')
    texts = [
        b" " * draw.choice([10_000, 20_000_000]),
        b"[" * draw.choice([1000, 1_000_000]),
        b'{"a":' * draw.choice([1000, 300_000]),
        text[: draw.randrange(len(text))].encode(),
        text.encode("utf-16"),
        b"\xef\xbb\xbf" + text.encode(),
        (text + text).encode(),
        ('{"classes": 7, ' + text[first:]).encode(),
        text.replace("1", "1" * 5000, 1).encode(),
        text.replace("0", "1e999", 1).encode(),
        text.replace("null", "NaN", 1).encode(),
        text.encode().replace(b'"', b"\xff", 3),
        bytes(1000),
    ]
    pool.text = draw.choice(texts)


def _role(pool: Crafted, draw: random.Random) -> str:
    roles = sorted({entry["role"] for entry in pool.manifest["files"]} - {"codec"})
    return str(draw.choice(roles))


def _file(pool: Crafted, draw: random.Random) -> str:
    return str(draw.choice(pool.manifest["files"])["path"])


def _change_column(pool: Crafted, draw: random.Random) -> None:
    """Put values that do not belong there into a column."""
    role = _role(pool, draw)
    table = pool.table(role)
    column = draw.choice(table.column_names)
    values = table[column].to_pylist()
    if not values:
        return
    for _ in range(draw.choice([1, 1, len(values)])):
        place = draw.randrange(len(values))
        old = values[place]
        if isinstance(old, list):
            values[place] = draw.choice([[], old[:-1], old * 2, old[::-1], old[:1] * len(old)])
        elif isinstance(old, bytes):
            values[place] = draw.choice([bytes(len(old)), old[::-1], old[:-1] + b"\xff", strange_frame(draw)])
        elif isinstance(old, bool):
            values[place] = not old
        elif isinstance(old, int):
            values[place] = draw.choice([-1, 0, old + 1, 2**15, 2**31 - 1, -(2**31), 2**62])
        elif isinstance(old, float):
            values[place] = draw.choice(FLOATS)
        else:
            values[place] = draw.choice([None, *TEXTS[:4], "con", "x" * 5000])
    field, place = table.schema.field(column), table.schema.get_field_index(column)
    try:
        changed = table.set_column(place, field, pa.array(values, field.type))
    except (pa.ArrowException, OverflowError, TypeError, ValueError, UnicodeError):
        changed = table.set_column(place, column, pa.array([values[0]] * len(values)))
    try:
        _put(pool, role, changed)
    except pa.ArrowException:
        _put(pool, role, table, draw)


def _put(pool: Crafted, role: str, table: pa.Table, draw: random.Random | None = None) -> None:
    """Write a table as a file of the pool, as pools do or nearly so."""
    odd: list[dict[str, Any]] = [{}, {}, {}, {"compression": "gzip"}, {"compression": "brotli"}]
    odd.append({"row_group_size": 1})
    base = PAYLOAD_SETTINGS if role == "labels" else TABLE_SETTINGS
    sink = io.BytesIO()
    pq.write_table(table, sink, **(base | (draw.choice(odd) if draw is not None else {})))
    _store(pool, pool.path(role), sink.getvalue(), rows=len(table))
    if role == "labels" and len(table) and draw is None:
        # Otherwise nothing but the place of its pages would be looked at.
        place_groups(pool)


def _store(pool: Crafted, name: str, data: bytes, *, rows: int | None = None) -> None:
    """Put bytes into the place of a file, and let the manifest agree."""
    del pool.files[name]
    pool.files[sign(pool.manifest, name, data, rows=rows)] = data


def _change_schema(pool: Crafted, draw: random.Random) -> None:
    """Drop, add, turn or retype columns."""
    role = _role(pool, draw)
    table = pool.table(role)
    name = draw.choice(table.column_names)
    numbered = pa.array(["1"] * len(table)).dictionary_encode()
    tables = [
        table.drop_columns([name]),
        table.append_column("surprise", pa.array([None] * len(table), pa.null())),
        table.append_column(name, table[name]),
        table.select(table.column_names[::-1]),
        table.rename_columns([f"{column}\0" for column in table.column_names]),
        table.slice(0, max(0, len(table) - 1)),
        pa.concat_tables([table, table]),
        table.slice(0, 0),
        table.set_column(0, table.column_names[0], pa.array([[[1]]] * len(table))),
        table.set_column(0, table.column_names[0], numbered),
        table.replace_schema_metadata({"ARROW:schema": "x" * draw.choice([10, 1_000_000])}),
    ]
    _put(pool, role, draw.choice(tables), draw)


def _change_many_rows(pool: Crafted, draw: random.Random) -> None:
    """Promise far more rows than there should be, in few bytes."""
    role = _role(pool, draw)
    table = pool.table(role)
    if not len(table):
        return
    times = draw.choice([10_000, 200_000])
    row = table.slice(0, 1)
    indices = pa.array([0] * min(times, 50_000_000 // max(1, row.nbytes)))
    sink = io.BytesIO()
    pq.write_table(row.take(indices), sink, compression="zstd", write_page_checksum=True)
    _store(pool, pool.path(role), sink.getvalue(), rows=len(indices) if draw.random() < 0.5 else None)


def _change_payload(pool: Crafted, draw: random.Random) -> None:
    """Replace the compressed bytes of a batch, in a labels file or a table of the codec."""
    table = pool.table("labels")
    binary = [f.name for f in table.schema if pa.types.is_binary(f.type) or pa.types.is_large_binary(f.type)]
    codec = [path for path in pool.files if path.startswith("codec/")]
    if codec and (not binary or draw.random() < 0.4):
        path = draw.choice(codec)
        _store(pool, path, strange_npy(draw) if path.endswith(".npy") else strange_frame(draw))
        return
    if not binary:
        _change_bytes(pool, draw)
        return
    column = draw.choice(binary)
    values = table[column].to_pylist()
    place = draw.randrange(len(values))
    old = values[place] or b""
    spoilt = bytearray(old)
    if spoilt:
        spoilt[draw.randrange(len(spoilt))] ^= 1 << draw.randrange(8)
    others = [bytes(spoilt), old + b"\0", old[: len(old) // 2], old + old]
    values[place] = draw.choice([strange_frame(draw), *others])
    field, where = table.schema.field(column), table.schema.get_field_index(column)
    _put(pool, "labels", table.set_column(where, field, pa.array(values, field.type)))


def _change_bytes(pool: Crafted, draw: random.Random) -> None:
    """Change bytes of a file, footers included, and sign it again."""
    name = _file(pool, draw)
    data = bytearray(pool.files[name])
    for _ in range(draw.choice([1, 4, 64])):
        near_end = draw.random() < 0.5
        place = draw.randrange(max(0, len(data) - 2000), len(data)) if near_end else draw.randrange(len(data))
        data[place] = draw.choice([0, 0xFF, 0x7F, 0x80, draw.randrange(256)])
    if draw.random() < 0.1:
        data[-8:-4] = struct.pack("<I", draw.choice([0, 1, len(data), 2**31, 2**32 - 1]))
    _store(pool, name, bytes(data))


def _change_place(pool: Crafted, draw: random.Random) -> None:
    """Have something else than a file where a file should be; see `_lay_traps`."""
    pool.links[_file(pool, draw)] = draw.choice(
        ["../outside/canary", "/dev/zero", "/etc/passwd", "pool.json", ".", "PIPE", "DIRECTORY", "SELF"]
    )


def _lay_traps(path: Path, pool: Crafted, draw: random.Random) -> None:
    """Turn links into what they stand for."""
    for name, target in pool.links.items():
        place = path / name
        deep = "../" * name.count("/")
        if target in ("PIPE", "DIRECTORY", "SELF"):
            place.unlink()
            if target == "PIPE":
                os.mkfifo(place)
            elif target == "DIRECTORY":
                place.mkdir()
            else:
                place.symlink_to(place.name)
        elif target.startswith(".."):
            place.unlink()
            place.symlink_to(deep + target)
    if draw.random() < 0.03:
        manifest = path / "pool.json"
        manifest.unlink()
        target = draw.choice(["../outside/canary", "/dev/zero", "pool.json", "PIPE"])
        os.mkfifo(manifest) if target == "PIPE" else manifest.symlink_to(target)


CHANGES: dict[str, Change] = {
    "manifest": _change_manifest,
    "column": _change_column,
    "payload": _change_payload,
    "manifest again": _change_manifest,
    "schema": _change_schema,
    "bytes": _change_bytes,
    "place": _change_place,
    "text": _change_text,
    "many rows": _change_many_rows,
    "bytes again": _change_bytes,
}
