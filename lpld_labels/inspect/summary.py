"""What a pool is and what it weighs, from its manifest alone: that of a remote pool is all that is read."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from lpld_labels.format.manifest import Augmentation, LineageStep, Manifest, Teacher
from lpld_labels.format.schema import FORMAT_VERSION, MANIFEST_FILE, Component
from lpld_labels.io.addresses import shown
from lpld_labels.pool.pool_files import open_files

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
    views: str
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


def summarise(location: str | os.PathLike[str]) -> PoolSummary:
    """Return the summary of a pool. Reads its manifest and nothing else."""
    files = open_files(location)
    text = files.manifest_text()
    manifest = Manifest.parse(text, where=files.at(MANIFEST_FILE))
    header, counts, coverage = manifest.header, manifest.counts, manifest.coverage
    sizes = _weigh(manifest, len(text))
    return PoolSummary(
        format_version=FORMAT_VERSION,
        location=shown(location),
        classes=header.classes,
        classes_covered=coverage.classes,
        images=counts.images,
        images_covered=coverage.images,
        epochs=counts.epochs,
        batches=counts.batches,
        incomplete_batches=counts.incomplete_batches,
        rows=counts.rows,
        batch_size=header.batch_size,
        codec=manifest.codec.name,
        codec_parameters=manifest.codec.parameters,
        label_kind=header.label_kind,
        seed=header.seed,
        teachers=header.teachers,
        ensemble=header.ensemble,
        augmentation=header.augmentation,
        views=manifest.views,
        bytes=sizes,
        bytes_per_row=round(sizes.total / counts.rows, 2) if counts.rows else 0.0,
        ratio=round(sizes.logical_fp16 / sizes.total, 3),
        ratio_to_pickle_layout=round(sizes.pickle_layout / sizes.total, 3),
        views_per_image=ViewsPerImage(
            minimum=coverage.minimum, median=coverage.median, maximum=coverage.maximum
        ),
        content_digest=manifest.content_digest,
        lineage=header.lineage,
    )


def _weigh(manifest: Manifest, manifest_bytes: int) -> PoolBytes:
    """Take the bytes of each component from the manifest, and add those of the manifest itself."""
    components = dict(manifest.components)
    components["container"] += manifest_bytes
    return PoolBytes(
        total=sum(components.values()),
        logical_fp16=manifest.counts.rows * manifest.header.classes * 2,
        pickle_layout=pickle_layout_bytes(
            manifest.counts.rows,
            manifest.counts.batches,
            manifest.header.classes,
            mixed=manifest.header.augmentation.mix != "none",
        ),
        components=components,
    )


def pickle_layout_bytes(rows: int, batches: int, classes: int, *, mixed: bool) -> int:
    """Return what one torch.save file per batch takes, fp16 logits; rows: of all batches."""
    per_row = 2 * classes + PICKLE_ROW_BYTES["crop"] + PICKLE_ROW_BYTES["flip"]
    per_row += PICKLE_ROW_BYTES["mix_index"] if mixed else 0
    return rows * per_row + batches * PICKLE_BATCH_OVERHEAD
