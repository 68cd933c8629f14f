"""`verify`: everything that opening and reading do not prove."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .batch_index import BatchEntry
from .errors import need, refuse
from .files import PoolFile
from .image_table import ImageTable, text
from .manifest import NAME, Manifest
from .packed import packed_images
from .pool import Pool, batch_digest, open_pool

_COMPONENT_OF = {"flip": "flip", "mix_slot": "mix_index", "mix_strength": "mix_strength"}
_KEYS = ("epoch", "batch", "slot", "image")


def component_of_view_column(name: str) -> str:
    """Give the component of a column of views files."""
    if name in _KEYS:
        return "keys"
    if name.startswith("crop_"):
        return "crop"
    return _COMPONENT_OF.get(name, "mix_box")


def content_digest(pool: Pool) -> str:
    """Give the content digest, hex, from the image table and the index."""
    manifest = pool.manifest
    identity = pool.codec.identity()
    how = manifest.augmentation
    out = hashlib.sha256(text("lpld-label-pool") + struct.pack("<I", manifest.classes))
    out.update(text(manifest.label_kind) + text(manifest.codec_name))
    out.update(struct.pack("<I", len(identity)) + identity)
    out.update(struct.pack("<II", how.output_height, how.output_width) + text(how.resize))
    out.update(struct.pack("<I", len(manifest.teachers)))
    for teacher in manifest.teachers:
        if teacher.mean is None or teacher.std is None:
            out.update(b"\0")
        else:
            out.update(b"\1" + struct.pack("<6d", *teacher.mean, *teacher.std))
    out.update(pool.images.digest() + struct.pack("<Q", len(pool.index)))
    for entry in pool.index:
        out.update(entry.digest)
    return out.hexdigest()


def _check_batches(pool: Pool) -> NDArray[np.int64]:
    """Read all batches, shard by shard; compare their digests; count views per image."""
    index_file = pool.manifest.of_role("batches")[0].path
    seen = np.zeros(len(pool.images.paths), np.int64)
    for entry in sorted(pool.index, key=lambda item: (item.shard, item.position)):
        views = pool.read_views(entry)
        digest = batch_digest(views, pool.read_labels(entry))
        need(digest == entry.digest, index_file, "digest", f"another batch digest at {entry.key}")
        np.add.at(seen, views.images, 1)
    return seen


def _check_shards(pool: Pool) -> None:
    """Compare footers and key columns of labels files with the index, and sum the bytes by component."""
    manifest = pool.manifest
    entries: list[list[BatchEntry]] = [[] for _ in pool.shards]
    for entry in pool.index:
        entries[entry.shard].append(entry)
    found = dict.fromkeys(manifest.components, 0)
    for shard, batches in enumerate(entries):
        labels = pool.labels_file(shard)
        table = labels.footer()
        labels.check_footer(table, batches)
        for name, size in table.component_bytes().items():
            found["keys" if name in _KEYS else "labels"] += size
        if not manifest.drawn:
            for name, size in pool.views_file(shard).table.component_bytes().items():
                found[component_of_view_column(name)] += size
    for role in ("codec", "packed"):
        found[role] = sum(entry.bytes for entry in manifest.of_role(role))
    found["container"] = sum(entry.bytes for entry in manifest.files) - sum(found.values())
    for name, size in found.items():
        claimed = manifest.components[name]
        need(size == claimed, NAME, f"components.{name}", f"{claimed}, but the files hold {size}")


def _check_coverage(manifest: Manifest, table: ImageTable, seen: NDArray[np.int64]) -> None:
    """Compare views per image with the manifest."""
    some = seen > 0
    found = (
        ("minimum", int(seen.min()) if seen.size else 0),
        ("maximum", int(seen.max()) if seen.size else 0),
        ("median", float(np.median(seen)) if seen.size else 0.0),
        ("images", int(np.count_nonzero(some))),
        ("classes", len(np.unique(table.classes[some]))),
    )
    for name, value in found:
        claimed = getattr(manifest.coverage, name)
        need(claimed == value, NAME, f"coverage.{name}", f"{claimed}, but the files hold {value}")


def leftovers(pool: Pool) -> list[str]:
    """List files in the folders of the pool that the manifest does not name."""
    named = {entry.path for entry in pool.manifest.files}
    found = (
        f"{folder}/{item.name}"
        for folder in ("views", "labels", "codec", "packed")
        for item in (pool.root / folder).glob("*")
    )
    return sorted(set(found) - named)


def verify(path: str | Path) -> None:
    """Refuse a pool that is not in every byte what its manifest says, or that has left-over files."""
    pool = open_pool(path)
    for entry in pool.manifest.files:
        PoolFile(pool.root, entry).prove()
    found = content_digest(pool)
    need(found == pool.manifest.content_digest, NAME, "content_digest", f"the pool's is {found}")
    _check_shards(pool)
    seen = _check_batches(pool)
    _check_coverage(pool.manifest, pool.images, seen)
    for _ in packed_images(pool.root, pool.manifest, pool.images):
        pass
    for name in leftovers(pool):
        refuse(name, "path", "left over: the manifest does not name it")
