"""A pool: opening it, reading its batches and images, and verifying all of it."""

import hashlib
import struct
from collections import Counter
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from . import tables
from .codecs import choose_codec
from .drawing import draw_views
from .manifest import NAME, Manifest, Row, load, need
from .parquet import KEYS, Table, message
from .tables import Key, key_of, text


class Pool:
    """A pool whose manifest, sizes, batch index and codec tables are proven."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest = Manifest(root)
        for file in self.manifest.files:
            load(root, file)
        self.index = tables.read_index(root, self.manifest)
        codec = {file["path"]: file for file in self.manifest.of_role("codec")}
        self.codec = choose_codec(self.manifest, lambda path: load(root, codec[path], proven=True))
        for shard, file in enumerate(self.manifest.of_role("labels")):
            batches = [entry["rows"] for entry in self.index.values() if entry["shard"] == shard]
            rows = sum(batches) if self.codec.per_view else len(batches)
            need(file["rows"] == rows, file["path"], f"{file['rows']} rows, but the index has {rows}")
        self._tables: dict[str, Table] = {}

    @cached_property
    def images(self) -> list[Row]:
        return tables.read_images(self.root, self.manifest)

    def read(self, key: Key) -> tuple[list[Row], NDArray[np.float32], bytes]:
        """Return views, as rows of a views file, labels, float32 [rows, C], and the batch digest."""
        entry, where, per_view = self.index[key], f"labels of {key}", self.codec.per_view
        views, table = self._views(entry), self._table("labels", entry["shard"])
        first, count = (entry["first_row"], entry["rows"]) if per_view else (entry["position"], 1)
        rows, span = table.rows(first, count), table.payload_spans[table.group_of(first)]
        need(span == entry["span"], where, "not where the index says")
        for slot, row in enumerate(rows):
            need(key_of(row) == key and row.get("slot", slot) == slot, where, "keys are not the index's")
        labels, canonical = self.codec.decode(rows, entry["rows"])
        need(np.isfinite(labels).all(), where, "NaN or infinite")
        need(self.manifest.label_kind == "logits" or (labels >= 0).all(), where, "below 0")
        return views, labels, hashlib.sha256(tables.views_digest(views) + canonical).digest()[:16]

    def packed_images(self) -> list[bytes]:
        found: list[bytes] = []
        for number, _ in enumerate(self.manifest.of_role("packed")):
            for row in self._table("packed", number).all_rows():
                image, data, where = self.images[len(found)], row["image"]["bytes"], f"image {len(found)}"
                same = (row["row"], row["class"], row["image"]["path"])
                need(same == (len(found), image["class"], image["path"]), where, "not the image table's")
                need(1 <= len(data) <= 2**28, where, f"{len(data)} bytes")
                need(hashlib.sha256(data).digest()[:16] == image["digest"], where, "another digest")
                found.append(data)
        return found

    def _table(self, role: str, number: int) -> Table:
        entry = self.manifest.of_role(role)[number]
        if entry["path"] not in self._tables:
            keys = "".join(f"required int32 {key}; " for key in KEYS[: 3 if self.codec.per_view else 2])
            columns = keys + self.codec.columns if role == "labels" else message(role)
            self._tables[entry["path"]] = Table(entry, load(self.root, entry), columns)
        return self._tables[entry["path"]]

    def _views(self, entry: Row) -> list[Row]:
        how, where = self.manifest.how, f"views of {key_of(entry)}"
        if self.manifest.drawn:
            sizes = [(image["height"], image["width"]) for image in self.images]
            seed, batch_size = self.manifest.fields["seed"], self.manifest.batch_size
            views = draw_views(how, sizes, seed, key_of(entry), batch_size, entry["mix_strength"])
        else:
            table = self._table("views", entry["shard"])
            views = table.rows(entry["first_row"], entry["rows"])
        need(all(key_of(row) == key_of(entry) for row in views), where, "keys are not those of the index")
        tables.check_views(views, self.images, (how["output_height"], how["output_width"]), where)
        need(tables.views_digest(views)[:8] == entry["views_digest"], where, "another digest")
        return views

    def content_digest(self) -> str:
        document, how, identity = self.manifest.fields, self.manifest.how, self.codec.identity
        digest = hashlib.sha256(text("lpld-label-pool") + struct.pack("<I", self.manifest.classes))
        digest.update(text(self.manifest.label_kind) + text(document["codec"]["name"]))
        digest.update(struct.pack("<I", len(identity)) + identity)
        digest.update(struct.pack("<II", how["output_height"], how["output_width"]) + text(how["resize"]))
        digest.update(struct.pack("<I", len(document["teachers"])))
        for teacher in document["teachers"]:
            pixels = [*(teacher["mean"] or ()), *(teacher["std"] or ())]
            digest.update(bytes([bool(pixels)]) + np.array(pixels, "<f8").tobytes())
        digest.update(tables.images_digest(self.images) + struct.pack("<Q", len(self.index)))
        digest.update(b"".join(entry["digest"] for entry in self.index.values()))
        return digest.hexdigest()

    def component_bytes(self) -> dict[str, int]:
        found = Counter(dict.fromkeys(self.manifest.fields["components"], 0))
        for role in ("labels", "views"):
            for shard, _ in enumerate(self.manifest.of_role(role)):
                found.update(self._table(role, shard).component_bytes)
        for role in ("codec", "packed"):
            found[role] = sum(entry["bytes"] for entry in self.manifest.of_role(role))
        found["container"] = sum(entry["bytes"] for entry in self.manifest.files) - sum(found.values())
        return found

    def coverage(self) -> dict[str, float]:
        """Read all batches, compare their digests, and return the views per image."""
        seen = np.zeros(len(self.images), np.int64)
        for key, entry in self.index.items():
            views, _, digest = self.read(key)
            need(digest == entry["digest"], f"batch {key}", "another digest")
            np.add.at(seen, [row["image"] for row in views], 1)
        found: dict[str, float] = dict.fromkeys(("minimum", "maximum", "median", "images", "classes"), 0)
        if seen.size:
            found = {"minimum": int(seen.min()), "maximum": int(seen.max()), "median": float(np.median(seen))}
            found["images"] = int((seen > 0).sum())
            found["classes"] = len({image["class"] for image in self.images if seen[image["image"]]})
        return found


def verify(path: str | Path) -> Pool:
    """Refuse a pool that is not in every byte what its manifest says, or that has left-over files."""
    pool = Pool(Path(path))
    document, files = pool.manifest.fields, pool.manifest.files
    for entry in files:
        load(pool.root, entry, proven=True)
    need(pool.content_digest() == document["content_digest"], NAME, "another content digest")
    need(pool.component_bytes() == document["components"], NAME, "other components")
    need(pool.coverage() == document["coverage"], NAME, "another coverage")
    pool.packed_images()
    found = {
        path for folder in ("views", "labels", "codec", "packed") for path in (pool.root / folder).glob("*")
    }
    left_over = found - {pool.root / entry["path"] for entry in files}
    need(not left_over, f"{left_over}", "the manifest does not name them")
    return pool
