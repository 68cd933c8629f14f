"""A pool, opened: which batches there are, and reading one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from .batch_index import BatchEntry, check_label_rows, read_index
from .codec_base import Decoded, Floats
from .codec_choice import choose_codec
from .drawing import Drawer
from .errors import need
from .image_table import ImageTable, read_images
from .labels import LabelsFile
from .manifest import Manifest, read_manifest
from .names import regular_file
from .packed import packed_image
from .parquet import Parquet
from .schema import VIEWS
from .views import MAX_TILES, Views, ViewsFile, check_views


@dataclass(frozen=True)
class Batch:
    """One batch: its views and its labels, float32 [B, C]."""

    views: Views
    labels: Floats


class Pool:
    """A pool whose manifest, sizes, batch index and codec tables are proven."""

    def __init__(self, root: Path) -> None:
        """Open a pool."""
        self.root = root
        need(root.is_dir(), str(root), "pool", "no directory")
        self.manifest: Manifest = read_manifest(root)
        for entry in self.manifest.files:
            _, size = regular_file(root, entry.path)
            need(size == entry.bytes, entry.path, "bytes", f"{size}, but the manifest says {entry.bytes}")
        index = read_index(root, self.manifest)
        self.index, self.shards = index.entries, index.shards
        self.codec = choose_codec(root, self.manifest)
        check_label_rows(index, self.codec.per_view)
        self._rows = {entry.key: entry for entry in self.index}
        self._images: ImageTable | None = None
        self._drawer: Drawer | None = None
        self._views: tuple[int, ViewsFile] | None = None
        self._labels: tuple[int, LabelsFile] | None = None

    @property
    def keys(self) -> list[tuple[int, int]]:
        """Give (epoch, batch) of all batches, ascending."""
        return list(self._rows)

    @property
    def images(self) -> ImageTable:
        """Give the image table; it is proven when it is first used."""
        if self._images is None:
            self._images = read_images(self.root, self.manifest)
        return self._images

    def views_file(self, shard: int) -> ViewsFile:
        """Open the views file of a shard; the last one is kept."""
        if self._views is None or self._views[0] != shard:
            entry = self.manifest.of_role("views")[shard]
            self._views = shard, ViewsFile(Parquet(self.root, entry, VIEWS, per_row=MAX_TILES))
        return self._views[1]

    def labels_file(self, shard: int) -> LabelsFile:
        """Open the labels file of a shard; the last one is kept."""
        if self._labels is None or self._labels[0] != shard:
            file = LabelsFile(self.root, self.shards[shard], self.codec, self.manifest)
            self._labels = shard, file
        return self._labels[1]

    def read_views(self, entry: BatchEntry) -> Views:
        """Read or draw the views of a batch, check them and compare their digest with the index."""
        how, images = self.manifest.augmentation, self.images  # which is proven first
        index = self.manifest.of_role("batches")[0].path
        if self.manifest.drawn:
            file = index
            if self._drawer is None:
                self._drawer = Drawer(self.manifest, images)
            views = self._drawer.draw(entry, file)
        else:
            source = self.views_file(entry.shard)
            file = source.table.entry.path
            views = source.read(entry.epoch, entry.batch, entry.first_row, entry.rows)
        check_views(views, images, (how.output_height, how.output_width), file)
        same = views.digest()[:8] == entry.views_digest
        need(same, index, "views_digest", f"another one at {entry.key}")
        return views

    def read_labels(self, entry: BatchEntry) -> Decoded:
        """Decode the labels of a batch."""
        return self.labels_file(entry.shard).read(entry)

    def image(self, row: int) -> bytes:
        """Give an image file of a pool that carries its images; LookupError where it does not."""
        return packed_image(self.root, self.manifest, self.images, row)

    def read(self, key: tuple[int, int]) -> Batch:
        """Read one batch by (epoch, batch); KeyError where there is none."""
        entry = self._rows[key]
        return Batch(self.read_views(entry), self.read_labels(entry).labels)


def batch_digest(views: Views, decoded: Decoded) -> bytes:
    """Give the batch digest, 16 bytes."""
    out = hashlib.sha256(views.digest())
    for piece in decoded.canonical:
        out.update(piece)
    return out.digest()[:16]


def open_pool(path: str | Path) -> Pool:
    """Open a pool or refuse it."""
    return Pool(Path(path))
