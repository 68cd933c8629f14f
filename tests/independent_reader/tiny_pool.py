"""A minimal writer of tiny pools for the tests, from the text alone; slow and simple."""

from __future__ import annotations

import json
import struct
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .tiny_payloads import C, Payload

BATCH_SIZE, IMAGES, SIZE = 4, 5, (8, 6)
HEIGHTS, WIDTHS = [20, 30, 40, 9, 7], [25, 20, 11, 33, 50]
CLASSES = [0, 1, 1, 6, 3]
KEYS = [(0, 0, 4), (0, 1, 1), (2, 0, 4), (2, 1, 1)]  # epoch, batch, rows
INT, U8 = pa.int32(), pa.uint8()
MIX = ("mix_top", "mix_left", "mix_bottom", "mix_right")
CUT = ("cutout_top", "cutout_left", "cutout_bottom", "cutout_right")
FILL = ("cutout_red", "cutout_green", "cutout_blue")
CROP = ("crop_top", "crop_left", "crop_height", "crop_width")


def text(value: str) -> bytes:
    """Encode a string for a digest."""
    return struct.pack("<I", len(value.encode())) + value.encode()


def schema(fields: list[tuple[str, Any]], optional: tuple[str, ...] = ()) -> pa.Schema:
    """Make a schema; columns are required unless named."""
    return pa.schema([pa.field(name, kind, nullable=name in optional) for name, kind in fields])


VIEWS = schema(
    [
        *((n, INT) for n in ("epoch", "batch", "slot", "image", *CROP)), ("flip", pa.bool_()),
        ("mix_slot", INT),
        ("mix_strength", pa.float64()), *((n, INT) for n in (*MIX, *CUT)), *((n, U8) for n in FILL),
        ("patch_order", pa.list_(pa.field("element", U8, nullable=False))),
    ],
    ("mix_slot", "mix_strength", *MIX, *CUT, *FILL, "patch_order"),
)  # fmt: skip
TABLE = schema(
    [("image", INT), ("path", pa.string()), *((n, INT) for n in ("class", "width", "height")),
     ("digest", pa.binary(16))], ("digest",),
)  # fmt: skip
INDEX = schema(
    [*((n, INT) for n in ("epoch", "batch", "rows", "shard", "position")), ("first_row", pa.int64()),
     ("group_offset", pa.int64()), ("group_bytes", INT), ("label_bytes", INT), ("mix_strength", pa.float64()),
     ("views_digest", pa.binary(8)), ("digest", pa.binary(16))],
    ("mix_strength",),
)  # fmt: skip
IMAGE = pa.struct(
    [pa.field("bytes", pa.binary(), nullable=False), pa.field("path", pa.string(), nullable=False)]
)
PACKED = schema([("row", INT), ("image", IMAGE), ("class", INT)])


def image_file(row: int) -> bytes:
    """Make an image file's bytes (which nobody decodes here)."""
    return b"image %d" % row * 50


def write(
    path: Path, groups: list[list[dict[str, Any]]], kind: pa.Schema, plain: tuple[str, ...] = ()
) -> None:
    """Write row groups of rows; `plain` columns are payload."""
    path.parent.mkdir(exist_ok=True)
    names = [field.name for field in kind if field.name not in plain]
    coding: dict[str, Any] = {
        "use_dictionary": [n for n in names if n not in ("slot", "first_row", "path", "image.path")],
        "compression": dict.fromkeys(names, "zstd") | {"labels.list.element": "none"},
        "column_encoding": {n: "DELTA_BINARY_PACKED" for n in names if n in ("slot", "first_row")},
    }
    if plain or not names:
        coding |= {"compression": "none", "use_dictionary": False, "column_encoding": None}
    with pq.ParquetWriter(path, kind, write_page_checksum=True, data_page_version="1.0", **coding) as out:
        for group in groups:
            out.write_table(pa.Table.from_pylist(group, kind))


class TinyPool:
    """A pool of four batches in two shards."""

    def __init__(self, root: Path, payload: Payload, packed: bool = False) -> None:
        """Write the pool."""
        self.root, self.payload = root, payload
        root.mkdir(parents=True, exist_ok=True)
        self.labels: dict[tuple[int, int], np.ndarray] = {}
        self.canonical: dict[tuple[int, int], bytes] = {}
        self.index: list[dict[str, Any]] = []
        self.images_digest = b""
        self.files: list[dict[str, Any]] = []
        self._images(packed)
        for shard, keys in enumerate((KEYS[:2], KEYS[2:])):
            self._shard(shard, keys)
        for name, data in payload.tables.items():
            (root / "codec").mkdir(exist_ok=True)
            (root / "codec" / name).write_bytes(data)
            self.files.append({"path": f"codec/{name}", "role": "codec", "rows": 0})
        self.write_index()
        self.write_manifest()

    def _images(self, packed: bool) -> None:
        """Write the image table and, where asked for, the images."""
        out = text("lpld-image-table") + struct.pack("<Q", IMAGES)
        rows: list[dict[str, Any]] = []
        for i in range(IMAGES):
            digest = sha256(image_file(i)).digest()[:16] if packed or i != 2 else None
            path = f"c{CLASSES[i]}/ä{i}.png"
            rows.append(
                {"image": i, "path": path, "class": CLASSES[i], "width": WIDTHS[i], "height": HEIGHTS[i]}
            )
            rows[-1]["digest"] = digest
            out += struct.pack("<I", CLASSES[i]) + (b"\0" + text(path) if digest is None else b"\1" + digest)
        self.images_digest = sha256(out).digest()
        write(self.root / "images.parquet", [rows[:2], rows[2:]], TABLE)
        self.files.append({"path": "images.parquet", "role": "images", "rows": IMAGES})
        for part in (slice(0, 2), slice(2, 5)) if packed else ():
            these = [
                {
                    "row": r["image"],
                    "image": {"bytes": image_file(r["image"]), "path": r["path"]},
                    "class": r["class"],
                }
                for r in rows[part]
            ]
            write(self.root / f"packed/p{part.start}.parquet", [these], PACKED)
            self.files.append({"path": f"packed/p{part.start}.parquet", "role": "packed", "rows": len(these)})

    def views(self, epoch: int, batch: int, count: int) -> tuple[list[dict[str, Any]], bytes]:
        """Make the views of a batch and their digest: CutMix in epoch 0, MixUp with patches in epoch 2."""
        cutmix, patches = epoch == 0 and count > 1, epoch == 2
        kind = 1 if cutmix else 2 if patches else 0
        rows: list[dict[str, Any]] = []
        for i in range(count):
            image = (batch * BATCH_SIZE + i) % IMAGES
            row: dict[str, Any] = dict.fromkeys(VIEWS.names)
            row |= {"epoch": epoch, "batch": batch, "slot": i, "image": image, "flip": i % 2 == 1}
            row |= {"crop_top": i, "crop_left": 1, "crop_height": HEIGHTS[image] - i, "crop_width": 5}
            if kind:
                row |= {"mix_slot": count - 1 - i, "mix_strength": 0.3}
            if cutmix:
                row |= dict(zip(MIX, (0, 2, 8, 2), strict=True))
                row |= dict(zip(CUT, (1, 1, 8, i + 2), strict=True)) | dict(
                    zip(FILL, (255, i, 0), strict=True)
                )
            if patches:
                row["patch_order"] = [(i + j) % 4 for j in range(4)]
            rows.append(row)
        out = struct.pack("<5q", epoch, batch, count, kind, cutmix + (8 if patches else 0))
        out += b"".join(struct.pack("<i", r["image"]) for r in rows)
        out += b"".join(struct.pack("<4i", *(r[n] for n in CROP)) for r in rows)
        out += bytes(r["flip"] for r in rows)
        if kind:
            out += b"".join(struct.pack("<i", r["mix_slot"]) for r in rows) + struct.pack("<d", 0.3)
        if cutmix:
            out += struct.pack("<4q", 0, 2, 8, 2) + b"".join(
                struct.pack("<4i", *(r[n] for n in CUT)) for r in rows
            )
            out += b"".join(bytes(r[n] for n in FILL) for r in rows)
        if patches:
            out += b"".join(bytes(r["patch_order"]) for r in rows)
        return rows, sha256(out).digest()

    def _shard(self, shard: int, keys: list[tuple[int, int, int]]) -> None:
        """Write views and labels of a shard, one row group per batch for labels."""
        payload, first = self.payload, 0
        views: list[dict[str, Any]] = []
        groups: list[list[dict[str, Any]]] = []
        for position, (epoch, batch, rows) in enumerate(keys):
            these, digest = self.views(epoch, batch, rows)
            columns, canonical, self.labels[epoch, batch] = payload.encode(rows)
            self.canonical[epoch, batch] = canonical
            groups.append([])
            for i in range(rows if payload.per_view else 1):
                key = {"epoch": epoch, "batch": batch} | ({"slot": i} if payload.per_view else {})
                groups[-1].append(key | {name: values[i] for name, values in columns.items()})
            views += these
            self.index.append({
                "epoch": epoch, "batch": batch, "rows": rows, "shard": shard, "position": position,
                "first_row": first, "mix_strength": None, "views_digest": digest[:8],
                "digest": sha256(digest + canonical).digest()[:16],
            })  # fmt: skip
            first += rows
        names = ("epoch", "batch", "slot") if payload.per_view else ("epoch", "batch")
        kind = pa.schema([*(pa.field(n, INT, nullable=False) for n in names), *payload.fields])
        write(self.root / f"views/s{shard}.parquet", [views], VIEWS)
        write(self.root / f"labels/s{shard}.parquet", groups, kind, tuple(f.name for f in payload.fields))
        self.files.append({"path": f"views/s{shard}.parquet", "role": "views", "rows": first})
        rows = first if payload.per_view else len(keys)
        self.files.append({"path": f"labels/s{shard}.parquet", "role": "labels", "rows": rows})
        self.locate(shard)

    def locate(self, shard: int) -> None:
        """Note in the index where the payload of each batch's row group lies, as pyarrow sees it."""
        meta = pq.read_metadata(self.root / f"labels/s{shard}.parquet")
        stops = np.cumsum([meta.row_group(g).num_rows for g in range(meta.num_row_groups)])
        for row in (row for row in self.index if row["shard"] == shard):
            first = row["first_row"] if self.payload.per_view else row["position"]
            group = meta.row_group(int(np.searchsorted(stops, first, side="right")))
            chunks = [group.column(c) for c in range(3 if self.payload.per_view else 2, meta.num_columns)]
            row["group_offset"] = chunks[0].data_page_offset
            row["group_bytes"] = sum(chunk.total_compressed_size for chunk in chunks)
            others = [r for r in self.index if r is not row and r.get("label_bytes")]
            same = [r for r in others if (r["shard"], r["group_offset"]) == (shard, row["group_offset"])]
            row["label_bytes"] = 0 if same else row["group_bytes"]

    def write_index(self) -> None:
        """Write the batch index under the name that its digest gives."""
        self.files = [entry for entry in self.files if entry["role"] != "batches"]
        path = self.root / "batches.tmp"
        write(path, [self.index[:3], self.index[3:]], INDEX)
        name = f"batches-{sha256(path.read_bytes()).hexdigest()[:8]}.parquet"
        path.rename(self.root / name)
        self.files.append({"path": name, "role": "batches", "rows": len(self.index)})

    def entry(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Complete an entry of `files` from the file itself."""
        data = (self.root / entry["path"]).read_bytes()
        footer = None if entry["role"] == "codec" else struct.unpack("<I", data[-8:-4])[0] + 8
        return entry | {
            "bytes": len(data), "digest": sha256(data).hexdigest(), "footer_bytes": footer,
            "footer_digest": None if footer is None else sha256(data[-footer:]).hexdigest(),
        }  # fmt: skip

    def components(self, files: list[dict[str, Any]]) -> dict[str, int]:
        """Sum bytes by component with pyarrow's view of the footers."""
        names = "crop flip mix_index mix_strength mix_box labels codec packed keys container"
        out = dict.fromkeys(names.split(), 0)
        for entry in files:
            out["container"] += entry["bytes"]
            where: dict[str, str] = {}
            if entry["role"] in ("codec", "packed"):
                out[entry["role"]] += entry["bytes"]
                out["container"] -= entry["bytes"]
            elif entry["role"] == "views":
                where = {"flip": "flip", "mix_slot": "mix_index", "mix_strength": "mix_strength"}
                where |= dict.fromkeys(CROP, "crop") | dict.fromkeys(
                    (*MIX, *CUT, *FILL, "patch_order"), "mix_box"
                )
            if entry["role"] in ("views", "labels"):
                meta = pq.read_metadata(self.root / entry["path"])
                where |= dict.fromkeys(("epoch", "batch", "slot", "image"), "keys")
                for g in range(meta.num_row_groups):
                    for c in range(meta.num_columns):
                        chunk = meta.row_group(g).column(c)
                        name = where.get(chunk.path_in_schema.split(".")[0], "labels")
                        out[name] += chunk.total_compressed_size
                        out["container"] -= chunk.total_compressed_size
        return out

    def content_digest(self) -> str:
        """Give the content digest."""
        payload = self.payload
        out = text("lpld-label-pool") + struct.pack("<I", C) + text(payload.kind) + text(payload.name)
        out += struct.pack("<I", len(payload.identity)) + payload.identity + struct.pack("<II", *SIZE)
        out += (
            text("torch") + struct.pack("<I", 2) + b"\1" + struct.pack("<6d", 0.4, 0.5, 0.6, 1, 2, 3) + b"\0"
        )
        out += self.images_digest + struct.pack("<Q", len(self.index))
        return sha256(out + b"".join(row["digest"] for row in self.index)).hexdigest()

    def manifest(self) -> dict[str, Any]:
        """Make the manifest from the files as they are."""
        files = [self.entry(entry) for entry in self.files]
        nothing = dict.fromkeys(
            ("crop_scale", "crop_ratio", "flip_probability", "mix_alpha", "cutout_fraction")
        )
        teachers = [
            {"name": "a", "weights_digest": "0" * 64, "mean": [0.4, 0.5, 0.6], "std": [1, 2, 3]},
            {"name": "b", "weights_digest": None, "mean": None, "std": None},
        ]
        how = {"output_height": SIZE[0], "output_width": SIZE[1], "resize": "torch", "mix": "none", **nothing}
        return {
            "format": "lpld-label-pool", "format_version": 1, "classes": C, "batch_size": BATCH_SIZE,
            "label_kind": self.payload.kind, "seed": None, "teachers": teachers, "ensemble": None,
            "augmentation": how | {"patch_grid": None}, "views": "stored",
            "lineage": [{"operation": "made", "parent_digest": None, "parameters": {"x": [None, True]}}],
            "codec": {"name": self.payload.name, "parameters": self.payload.parameters},
            "counts": {"images": IMAGES, "epochs": 2, "batches": 4, "incomplete_batches": 2, "rows": 10},
            "coverage": {"minimum": 2, "maximum": 2, "median": 2, "images": 5, "classes": 4},
            "components": self.components(files), "content_digest": self.content_digest(), "files": files,
            "created_by": "tiny", "extra": {"must_understand": False},
        }  # fmt: skip

    def write_manifest(self, **changes: Any) -> None:
        """Write the manifest, with changes of its top-level fields."""
        (self.root / "pool.json").write_text(json.dumps(self.manifest() | changes), encoding="utf-8")
