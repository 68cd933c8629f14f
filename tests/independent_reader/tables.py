"""The image table and the batch index: checked, and compared with the manifest."""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import FileEntry, load, need
from .manifest import NAME, Manifest, folded
from .parquet import Row, Table, message

_RESERVED = re.compile(r"(con|prn|aux|nul|com[1-9]|lpt[1-9])(\..*)?", re.DOTALL)


def text(value: str) -> bytes:
    """Return `text` of the digests."""
    data = value.encode()
    return struct.pack("<I", len(data)) + data


def _proven_rows(root: Path, entry: FileEntry) -> list[Row]:
    table = Table(entry, load(root, entry, proven=True), message(entry.role))
    table.check_growth(entry)
    return table.all_rows()


def read_images(root: Path, manifest: Manifest) -> list[Row]:
    """Prove, read and check the image table."""
    (entry,) = manifest.of_role("images")
    images, where = _proven_rows(root, entry), entry.path
    for number, image in enumerate(images):
        need(image["image"] == number, where, "images do not count 0, 1, 2, ...")
        need(0 <= image["class"] < manifest.classes, where, f"class {image['class']}")
        need(all(1 <= image[side] <= 65535 for side in ("width", "height")), where, "width or height")
        _check_path(image["path"], where)
    need(len({folded(image["path"]) for image in images}) == len(images), where, "a path occurs twice")
    return images


def _check_path(path: str, where: str) -> None:
    need(len(path.encode()) <= 4096, where, "a path is too long")
    need(not re.search(r"[\x00-\x1f\x7f\\:]", path), where, f"path {path!a}")
    for part in path.split("/"):  # an absolute path begins with an empty part
        need(part not in ("", ".", ".."), where, f"path {path!a}")
        need(not _RESERVED.fullmatch(folded(part)), where, f"path {path!a} is reserved")


def images_digest(images: Sequence[Row]) -> bytes:
    """Return the image table digest."""
    digest = hashlib.sha256(text("lpld-image-table") + struct.pack("<Q", len(images)))
    for image in images:
        name = b"\0" + text(image["path"]) if image["digest"] is None else b"\1" + image["digest"]
        digest.update(struct.pack("<I", image["class"]) + name)
    return digest.digest()


@dataclass(frozen=True)
class Entry:
    """One row of the batch index."""

    epoch: int
    batch: int
    rows: int
    shard: int
    position: int
    first_row: int
    group_offset: int
    group_bytes: int
    label_bytes: int
    mix_strength: float | None
    views_digest: bytes
    digest: bytes

    @property
    def key(self) -> tuple[int, int]:
        return self.epoch, self.batch

    @property
    def span(self) -> tuple[int, int]:
        return self.group_offset, self.group_bytes


def read_index(root: Path, manifest: Manifest) -> list[Entry]:
    """Prove, read and check the batch index."""
    (file,) = manifest.of_role("batches")
    entries = [Entry(**row) for row in _proven_rows(root, file)]
    shards: list[list[Entry]] = [[] for _ in manifest.of_role("labels")]
    last = (-1, -1)
    for entry in entries:
        where = f"{file.path} {entry.key}"
        need(entry.epoch >= 0 and entry.batch >= 0, where, "below 0")
        need(last < entry.key, where, "out of order")
        last = entry.key
        need(1 <= entry.rows <= manifest.batch_size, where, f"{entry.rows} rows")
        need(0 <= entry.shard < len(shards), where, f"shard {entry.shard}")
        shards[entry.shard].append(entry)
        _check_drawn(manifest, entry, where)
    for number, batches in enumerate(shards):
        _check_shard(manifest, number, batches, file.path)
    counts = {
        "images": manifest.counts["images"],
        "epochs": len({entry.epoch for entry in entries}),
        "batches": len(entries),
        "incomplete_batches": sum(entry.rows < manifest.batch_size for entry in entries),
        "rows": sum(entry.rows for entry in entries),
    }
    need(counts == manifest.counts, f"{NAME} counts", f"the batch index has {counts}")
    return entries


def _check_drawn(manifest: Manifest, entry: Entry, where: str) -> None:
    """Refuse a mix strength where there is none to use, and a batch that its epoch does not have."""
    mixed = manifest.drawn and manifest.how["mix"] != "none"
    need((entry.mix_strength is not None) == mixed, where, "mix_strength is null, or is not")
    need(not mixed or is_strength(entry.mix_strength), where, f"mix_strength {entry.mix_strength}")
    left = manifest.counts["images"] - entry.batch * manifest.batch_size
    need(not manifest.drawn or entry.rows == min(left, manifest.batch_size), where, "no batch of its epoch")


def is_strength(value: Any) -> bool:
    """Whether a value is a mix strength: 0 to 1, and not -0.0."""
    return value is not None and 0 <= value <= 1 and math.copysign(1, value) == 1


def _check_shard(manifest: Manifest, shard: int, batches: Sequence[Entry], index: str) -> None:
    """Refuse positions that do not count up, row groups that overlap, and a views file of other rows."""
    labels = manifest.of_role("labels")[shard]
    rows, end, span, left = 0, 4, (0, 0), 0
    for position, entry in enumerate(batches):
        where = f"{index} {entry.key}"
        need(entry.position == position and entry.first_row == rows, where, "position or first_row")
        rows += entry.rows
        if entry.span != span:  # the first batch of a row group
            need(left == 0, where, "label_bytes before it do not fill their row group")
            need(entry.group_offset >= end and entry.group_bytes > 0, where, "its row group overlaps another")
            span, left, end = entry.span, entry.group_bytes, sum(entry.span)
            need(end <= labels.bytes - (labels.footer_bytes or 0), where, "its row group leaves the file")
        need(0 <= entry.label_bytes <= left, where, "label_bytes")
        left -= entry.label_bytes
    need(left == 0, f"{index} shard {shard}", "label_bytes do not fill their row group")
    views = [] if manifest.drawn else [manifest.of_role("views")[shard].rows]
    need(views in ([], [rows]), index, f"views of shard {shard} have other rows")
