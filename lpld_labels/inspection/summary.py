"""What a pool is and what it weighs, from its manifest, its footers and one column of its views."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.format.manifest import Augmentation, LineageStep, Teacher
from lpld_labels.format.schema import COMPONENTS, FORMAT_VERSION, VIEW_COLUMNS, Component
from lpld_labels.pool.reader import PoolReader

Progress = Callable[[int, int], None]

PICKLE_BATCH_OVERHEAD = 2000
"""Bytes torch.save adds to each batch file: zip directory, pickle and alignment (1.9 to 2.1 kB)."""
PICKLE_ROW_BYTES = {"crop": 16, "flip": 1, "mix_index": 8}
"""Metadata per row in the one-pickle-per-batch layout: float32[4], bool, int64."""


@dataclass(frozen=True, kw_only=True)
class PoolBytes:
    """Bytes on disk and what the same labels take elsewhere.

    total: all files of the pool. components: its parts; they sum to total.
    logical_fp16: rows x classes x 2. pickle_layout: one torch.save file per batch, fp16.
    """

    total: int
    logical_fp16: int
    pickle_layout: int
    components: dict[Component, int]


@dataclass(frozen=True, kw_only=True)
class ViewsPerImage:
    """How often images were looked at (as themselves, not as a mixing partner)."""

    minimum: int
    median: float
    maximum: int


@dataclass(frozen=True, kw_only=True)
class PoolSummary:
    """Everything `inspect` shows."""

    format_version: int
    location: str
    classes: int
    classes_covered: int
    images: int
    images_covered: int
    epochs: int
    batches: int
    incomplete_batches: int
    rows: int
    batch_size: int
    codec: str
    codec_parameters: dict[str, Any]
    label_kind: str
    seed: int | None
    teachers: tuple[Teacher, ...]
    ensemble: str | None
    augmentation: Augmentation
    bytes: PoolBytes
    bytes_per_row: float
    ratio: float
    ratio_to_pickle_layout: float
    views_per_image: ViewsPerImage
    content_digest: str
    lineage: tuple[LineageStep, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return asdict(self)


def summarise(pool: PoolReader, *, progress: Progress | None = None) -> PoolSummary:
    """Return the summary of an open pool. Reads footers and the image column; no label bytes."""
    manifest, header = pool.manifest, pool.header
    sizes = _weigh(pool, progress)
    views = _views_by_image(pool)
    covered = np.unique(pool.images.classes[views > 0])
    counts = manifest.counts
    return PoolSummary(
        format_version=FORMAT_VERSION,
        location=os.fspath(pool.location),
        classes=header.classes,
        classes_covered=len(covered),
        images=counts.images,
        images_covered=int((views > 0).sum()),
        epochs=counts.epochs,
        batches=counts.batches,
        incomplete_batches=int((pool.index.rows < header.batch_size).sum()),
        rows=counts.rows,
        batch_size=header.batch_size,
        codec=manifest.codec.name,
        codec_parameters=manifest.codec.parameters,
        label_kind=header.label_kind,
        seed=header.seed,
        teachers=header.teachers,
        ensemble=header.ensemble,
        augmentation=header.augmentation,
        bytes=sizes,
        bytes_per_row=round(sizes.total / counts.rows, 2) if counts.rows else 0.0,
        ratio=round(sizes.logical_fp16 / sizes.total, 3),
        ratio_to_pickle_layout=round(sizes.pickle_layout / sizes.total, 3),
        views_per_image=ViewsPerImage(
            minimum=int(views.min(initial=0)) if not len(views) else int(views.min()),
            median=float(np.median(views)) if len(views) else 0.0,
            maximum=int(views.max(initial=0)),
        ),
        content_digest=manifest.content_digest,
        lineage=header.lineage,
    )


def _weigh(pool: PoolReader, progress: Progress | None) -> PoolBytes:
    """Attribute every byte to a component: column chunks by column, the rest to the container."""
    components: dict[Component, int] = dict.fromkeys(COMPONENTS, 0)
    owner = {column.name: column.component for column in VIEW_COLUMNS}
    owner |= {column.name: column.component for column in pool.codec.payload_columns(pool.classes)}
    shards = pool.index.shards
    for number in range(shards):
        for metadata in pool.footers(number):
            for group in range(metadata.num_row_groups):
                row_group = metadata.row_group(group)
                for place in range(row_group.num_columns):
                    chunk = row_group.column(place)
                    name = chunk.path_in_schema.split(".", 1)[0]
                    components[owner[name]] += chunk.total_compressed_size
        if progress is not None:
            progress(number + 1, shards)
    components["codec"] = sum(entry.bytes for entry in pool.manifest.files_of("codec"))
    total = sum(entry.bytes for entry in pool.manifest.files) + pool.manifest_bytes
    components["container"] = total - sum(components.values())
    return PoolBytes(
        total=total,
        logical_fp16=pool.manifest.counts.rows * pool.classes * 2,
        pickle_layout=pickle_layout_bytes(
            pool.index.rows, pool.classes, mixed=pool.header.augmentation.mix != "none"
        ),
        components=components,
    )


def pickle_layout_bytes(rows: npt.NDArray[np.int32], classes: int, *, mixed: bool) -> int:
    """Return what one torch.save file per batch takes: rows [N] per batch, fp16 logits."""
    per_row = 2 * classes + PICKLE_ROW_BYTES["crop"] + PICKLE_ROW_BYTES["flip"]
    per_row += PICKLE_ROW_BYTES["mix_index"] if mixed else 0
    return int(rows.sum()) * per_row + len(rows) * PICKLE_BATCH_OVERHEAD


def _views_by_image(pool: PoolReader) -> npt.NDArray[np.int64]:
    """Return how many views each image has: int64 [images]."""
    views = np.zeros(pool.manifest.counts.images, np.int64)
    for table in pool.view_tables(["image"]):
        views += np.bincount(table["image"].to_numpy(), minlength=len(views))
    return views
