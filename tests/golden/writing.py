"""Write tests/golden/v1/ anew: `python -m tests.golden.writing`.

Done when version 1 was closed, and once more when the batch index got `label_bytes`. Pools written since then
must stay readable: whoever feels the need to run this again is about to break users' pools.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from lpld_labels import Augmentation, ImageTable, LabelBatch, PoolHeader, PoolReader, PoolWriter, Teacher
from lpld_labels.codecs import Codec, codec_named
from lpld_labels.codecs.klt import KltCodec, KltTables
from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.format.drawing import batches_per_epoch, draw_views
from lpld_labels.format.manifest import LineageStep
from lpld_labels.format.schema import SHARD_BATCHES, LabelKind, Views
from lpld_labels.pool import shard
from lpld_labels.pool.shard import EncodedBatch
from tests.golden.drawing_vectors import vectors
from tests.golden.expected import as_json
from tests.golden.packing import add_packed, known_by, pictures

GOLDEN = Path(__file__).parent / "v1"
SEED = 2**40 + 7
TEACHERS = (
    Teacher(name="resnet18", weights_digest="ab" * 32, mean=(0.5, 0.25, 0.125), std=(0.2, 0.3, 0.4)),
    Teacher(name="unknown"),
)


def images(count: int, classes: int, *, known: bool = True) -> ImageTable:
    """Return a table of images of several sizes; known: whether their files were at hand."""
    number = np.arange(count)
    return ImageTable(
        paths=[f"class{i % classes:03d}/Bild ä{i:03d}.png" for i in range(count)],
        classes=(number % classes).astype(np.int32),
        widths=(20 + 7 * (number % 5)).astype(np.int32),
        heights=(24 + 5 * (number % 4)).astype(np.int32),
        digests=[bytes([i + 1] * 16) if known or i % 2 else None for i in range(count)],
    )


def header(classes: int, batch_size: int = 4, *, label_kind: LabelKind = "logits", **how: Any) -> PoolHeader:
    """Return a header; how: fields of its augmentation."""
    settings: dict[str, Any] = {"crop_scale": (0.1, 1.0), "crop_ratio": (0.75, 1.5), "flip_probability": 0.5}
    return PoolHeader(
        classes=classes,
        batch_size=batch_size,
        label_kind=label_kind,
        seed=SEED,
        teachers=TEACHERS,
        ensemble="mean",
        augmentation=Augmentation(
            **{"output_height": 16, "output_width": 12, "resize": "torch", **settings, **how}
        ),
        lineage=(LineageStep(operation="built", parameters={"by": ["hand", 1.5, None]}),),
    )


def batches(
    head: PoolHeader, table: ImageTable, *, epochs: int = 2, dtype: str = "float16", scale: float = 3.0
) -> list[LabelBatch]:
    """Return all batches of some epochs, their views drawn, their labels made up."""
    made = []
    for epoch in range(epochs):
        for batch in range(batches_per_epoch(len(table), head.batch_size)):
            views = draw_views(
                head.augmentation,
                table,
                seed=head.seed or 0,
                epoch=epoch,
                batch=batch,
                batch_size=head.batch_size,
            )
            rng = np.random.default_rng([epoch, batch])
            labels = rng.normal(0, scale, (views.rows, head.classes))
            if head.label_kind == "probabilities":
                labels = np.exp(labels) / np.exp(labels).sum(axis=1, keepdims=True)
                labels[0, 0] = 0
            made.append(LabelBatch(**vars(views), labels=labels.astype(dtype)))
    return made


def klt(*, label_kind: LabelKind = "logits", peaks: int = 2) -> KltCodec:
    """Return a codec of 5 classes with a basis of 3 vectors in two bands."""
    vectors_ = np.array([[900, -300, 20, -500, 7], [-11, 800, -640, 3, 250], [40, 60, 700, -90, -710]])
    tables = KltTables(
        vectors=vectors_.astype(np.int16),
        scales=np.array([1e-3, 1.1e-3, 9e-4], np.float32),
        mean=np.array([0.5, -1.25, 2.0, 0.1, -0.3], np.float16),
    )
    return KltCodec(tables=tables, step=0.3, edges=(0, 2, 4), peaks=peaks, label_kind=label_kind)


def write(
    name: str,
    head: PoolHeader,
    table: ImageTable,
    given: Iterable[LabelBatch | EncodedBatch],
    codec: Codec | str,
    *,
    views: Views = "stored",
    per_shard: int | None = None,
) -> None:
    """Write a pool and what it holds."""
    path = GOLDEN / name
    chosen = codec_named(codec, label_kind=head.label_kind) if isinstance(codec, str) else codec
    with PoolWriter(
        path,
        header=head,
        images=table,
        codec=chosen,
        views=views,
        shard_batches=per_shard or SHARD_BATCHES,
    ) as writer:
        for batch in given:
            if isinstance(batch, EncodedBatch):
                writer.append_encoded(batch)
            else:
                writer.append(batch)
        writer.commit()
    record(name)


def record(name: str) -> None:
    """Write what a pool holds, as our own reader reads it."""
    with PoolReader(GOLDEN / name) as pool:
        document = {
            "content_digest": pool.manifest.content_digest,
            "batches": [as_json(batch) for batch in pool],
        }
    (GOLDEN / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")


def entries(
    head: PoolHeader, codec: TopKCodec, made: Sequence[LabelBatch], *, tail: bool
) -> list[EncodedBatch]:
    """Return batches as a program stores them that keeps entries in an order of its own."""
    encoded: list[EncodedBatch] = []
    for batch in made:
        rng = np.random.default_rng(len(encoded))
        kept = np.stack([rng.permutation(head.classes)[: codec.k] for _ in range(batch.rows)])
        values = np.take_along_axis(batch.labels, kept, axis=1).astype(codec.value_dtype)
        level = np.full(batch.rows, -1.5, np.float32) if tail else None
        payload = codec.encode_sparse(values, kept.astype(np.int32), level, classes=head.classes)
        encoded.append(EncodedBatch.make(batch, payload))
    return encoded


def main() -> None:
    """Write every pool."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir()
    table = images(10, 7)
    head = header(7)
    plain = batches(head, table)
    for codec in ("f16", "f16:plain", "int8", "int6", "int4", "topk:3", "topk:3:8"):
        write(codec.replace(":", "-"), head, table, plain, codec)
    for codec in ("f32", "f32:plain"):
        write(codec.replace(":", "-"), head, table, batches(head, table, dtype="float32", scale=1e5), codec)
    mixed = header(7, mix="cutmix", mix_alpha=1.0)
    write("cutmix", mixed, table, batches(mixed, table), "f16:plain")
    write("f16-drawn", mixed, table, batches(mixed, table), "f16:plain", views="drawn")
    blended = header(7, mix="mixup", mix_alpha=0.2, crop_scale=None, flip_probability=None)
    write("mixup-drawn", blended, table, batches(blended, table), "f16", views="drawn")
    shuffled = header(7, patch_grid=2, cutout_fraction=0.5)
    write("patches", shuffled, table, batches(shuffled, table), "f16:plain")
    write("patches-drawn", shuffled, table, batches(shuffled, table), "int8", views="drawn")

    few = images(9, 5)
    five = header(5)
    write("klt", five, few, batches(five, few), klt())
    write("klt-no-peaks", five, few, batches(five, few), klt(peaks=0))
    odds = header(5, label_kind="probabilities")
    write("probabilities", odds, few, batches(odds, few, dtype="float32"), "f32:plain")
    write("probabilities-klt", odds, few, batches(odds, few), klt(label_kind="probabilities"))
    write("probabilities-topk", odds, few, batches(odds, few), "topk:2:16")

    sparse = TopKCodec(k=4, value_bits=32)
    write("topk-4-32", head, table, entries(head, sparse, plain, tail=False), sparse)
    sparse = TopKCodec(k=3)
    write("topk-order", head, table, entries(head, sparse, plain, tail=True), sparse)
    wide = header(70_000, 2)
    write("wide", wide, images(3, 3), batches(wide, images(3, 3), epochs=1), "topk:5")

    with (
        mock.patch.object(shard, "LABEL_BYTES_PER_GROUP", 100),
        mock.patch.object(shard, "VIEW_ROWS_PER_GROUP", 5),
    ):
        several = batches(head, table, epochs=3)
        write("shards", head, table, several, "int6", per_shard=4)
        drawn = batches(mixed, table, epochs=3)
        write("shards-drawn", mixed, table, drawn, "f16", views="drawn", per_shard=3)
    # Every other image's file was not at hand.
    write("no-digests", head, images(10, 7, known=False), plain, "int4")
    write("empty", head, table, [], "f16")
    write("empty-no-images", head, images(0, 7), [], "f16:plain")
    write("ignorable", head, table, plain[:1], "f16")
    _add_ignorable(GOLDEN / "ignorable" / "pool.json")
    write_packed(head, images(6, 7))
    (GOLDEN / "drawing.json").write_text(json.dumps(vectors(), indent=1) + "\n")


def write_packed(head: PoolHeader, table: ImageTable) -> None:
    """Write a pool that carries its images."""
    files = pictures(table)
    known = known_by(table, files)
    write("packed", head, known, batches(head, known, epochs=1), "int8")
    add_packed(GOLDEN / "packed", known, files)


def _add_ignorable(path: Path) -> None:
    """Add fields that a reader may ignore, at several levels, and a README."""
    document = json.loads(path.read_text())
    extra = {"must_understand": False, "note": "of a later version"}
    document["later"] = extra
    for place in ("augmentation", "counts", "codec"):
        document[place]["later"] = extra
    document["files"][0]["later"] = document["teachers"][0]["later"] = extra
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    (path.parent / "README.md").write_text("Not part of the pool.\n")


if __name__ == "__main__":
    main()
