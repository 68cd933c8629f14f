"""Random but valid label batches, image tables and pools for tests."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from subprocess import CompletedProcess
from textwrap import dedent
from typing import Any

import numpy as np

from lpld_labels import (
    Augmentation,
    BatchKey,
    Box,
    CutOut,
    ImageTable,
    LabelBatch,
    Mix,
    PoolHeader,
    PoolReader,
    PoolWriter,
    Teacher,
)
from lpld_labels.codecs import Codec, codec_named
from lpld_labels.exec.job import Progress
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.pool.plan import PoolPlan, Shard
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.transforms.pipeline import run_plan
from lpld_labels.transforms.prune import plan_prune, write_pruned
from lpld_labels.transforms.settings import PruneSettings

SIZE = 32


def make_images(count: int = 50, classes: int = 10, size: int = 48) -> ImageTable:
    """Return a table of square images with made-up digests."""
    side = np.full(count, size, np.int32)
    return ImageTable(
        paths=[f"class{i % classes:04d}/image{i:05d}.png" for i in range(count)],
        classes=(np.arange(count) % classes).astype(np.int32),
        widths=side,
        heights=side,
        digests=[i.to_bytes(16, "little") for i in range(count)],
    )


def make_header(classes: int = 10, batch_size: int = 8, mix: Any = "cutmix", **others: Any) -> PoolHeader:
    """Return a header for views of 32 x 32 pixels."""
    augmentation = Augmentation(
        output_height=SIZE,
        output_width=SIZE,
        resize="torch",
        crop_scale=(0.08, 1.0),
        crop_ratio=(0.75, 4 / 3),
        flip_probability=0.5,
        mix=mix,
        mix_alpha=None if mix == "none" else 1.0,
    )
    teacher = Teacher(name="resnet18", weights_digest="0" * 64, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    values: dict[str, Any] = {"seed": 0, "teachers": (teacher,), **others}
    return PoolHeader(classes=classes, batch_size=batch_size, augmentation=augmentation, **values)


def make_batch(
    epoch: int,
    batch: int,
    *,
    rows: int = 8,
    classes: int = 10,
    images: ImageTable | None = None,
    mix: str = "cutmix",
    cutout: bool = False,
    patches: int | None = None,
    dtype: type[np.floating[Any]] = np.float16,
) -> LabelBatch:
    """Return a batch that depends on nothing but its arguments."""
    table = images if images is not None else make_images(classes=classes)
    rng = np.random.default_rng([epoch, batch, rows, classes])
    chosen = rng.integers(0, len(table), rows).astype(np.int32)
    sizes = np.stack([table.heights[chosen], table.widths[chosen]], axis=1)
    extent = rng.integers(1, sizes + 1)
    start = rng.integers(0, sizes - extent + 1)
    order = np.stack([rng.permutation(patches**2) for _ in range(rows)]) if patches else None
    return LabelBatch(
        key=BatchKey(epoch, batch),
        images=chosen,
        crops=np.concatenate([start, extent], axis=1).astype(np.int32),
        flips=rng.random(rows) < 0.5,
        mix=_mix(rng, rows, mix),
        cutout=_cutout(rng, rows) if cutout else None,
        patch_order=None if order is None else order.astype(np.uint8),
        labels=rng.normal(0, 3, (rows, classes)).astype(dtype),
    )


def _mix(rng: np.random.Generator, rows: int, kind: str) -> Mix | None:
    if kind == "none":
        return None
    corners = np.sort(rng.integers(0, SIZE + 1, (2, 2)), axis=0)
    box = Box(*corners.ravel().tolist()) if kind == "cutmix" else None
    return Mix(partner=rng.permutation(rows).astype(np.int32), strength=float(rng.random()), box=box)


def _cutout(rng: np.random.Generator, rows: int) -> CutOut:
    corners = np.sort(rng.integers(0, SIZE + 1, (rows, 2, 2)), axis=1).reshape(rows, 4)
    return CutOut(boxes=corners.astype(np.int32), fill=rng.integers(0, 256, (rows, 3)).astype(np.uint8))


def make_batches(epochs: int = 3, per_epoch: int = 4, **options: Any) -> list[LabelBatch]:
    """Return the batches of some epochs in key order."""
    return [make_batch(e, b, **options) for e in range(epochs) for b in range(per_epoch)]


def write_pool(
    path: Path,
    batches: Sequence[LabelBatch],
    *,
    codec: Codec | str = "f16",
    header: PoolHeader | None = None,
    images: ImageTable | None = None,
) -> PoolReader:
    """Write a pool and open it."""
    classes = batches[0].classes if batches else 10
    header = header or make_header(classes, max((b.rows for b in batches), default=8))
    images = images or make_images(classes=classes)
    chosen = codec_named(codec) if isinstance(codec, str) else codec
    with PoolWriter(path, header=header, images=images, codec=chosen) as writer:
        writer.extend(batches)
        writer.commit()
    return PoolReader(path)


def grow_pool(path: Path, batches: Sequence[LabelBatch], *, progress: Progress | None = None) -> Manifest:
    """Add those of the batches that a pool does not have, each in a shard of its own."""
    with PoolReader(path) as pool:
        missing = sorted((batch for batch in batches if batch.key not in pool), key=lambda batch: batch.key)
        step = LineageStep(operation="grow", parent_digest=pool.manifest.content_digest)
        lineage = (*pool.header.lineage, step) if missing else pool.header.lineage
        plan = PoolPlan(
            out=path,
            header=replace(pool.header, lineage=lineage),
            images=pool.images,
            codec=pool.codec,
            views=pool.manifest.views,
            source=GivenBatches(pool.codec),
            shards=[Shard((batch,), 1) for batch in missing],
            settings={"keys": [list(batch.key) for batch in missing]},
            base=pool.manifest,
        )
    return run_plan(plan, progress=progress)


@dataclass(frozen=True)
class GivenBatches:
    """A source whose items are batches."""

    codec: Codec

    def __call__(self, batches: Sequence[LabelBatch]) -> Iterator[EncodedBatch]:
        for batch in batches:
            yield EncodedBatch.make(batch, self.codec.encode(batch.labels))


def edit_manifest(path: Path, **changes: Any) -> None:
    """Change fields of a pool's manifest; `a__b` is field b of field a."""
    document = json.loads((path / "pool.json").read_text())
    for name, value in changes.items():
        *parents, last = name.split("__")
        target = document
        for parent in parents:
            target = target[parent]
        target[last] = value
    (path / "pool.json").write_text(json.dumps(document))


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return everything below a folder: the contents of files, None for directories."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def interrupt_at(count: int) -> Progress:
    """Return a progress callback that presses Ctrl-C when `count` are done; below 0: counted from the end."""

    def progress(done: int, total: int) -> None:
        if done == (count if count >= 0 else total + count):
            raise KeyboardInterrupt

    return progress


def assert_same_views(found: Any, expected: Any) -> None:
    """Compare everything about two batches but their labels."""
    parts = ((found, expected), (found.mix, expected.mix), (found.cutout, expected.cutout))
    for mine, wanted in parts:
        assert (mine is None) == (wanted is None)
        for field in fields(wanted) if wanted is not None else ():
            if field.name not in ("labels", "mix", "cutout"):
                value = getattr(wanted, field.name)
                np.testing.assert_equal(getattr(mine, field.name), value, err_msg=field.name)


def prune_pool(
    pool: PoolReader,
    out: str | Path,
    settings: PruneSettings,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    plan = plan_prune(pool, settings, progress=progress)
    return write_pruned(plan, out, overwrite=overwrite, progress=progress)


def flip_bit(path: Path, place: int, bit: int = 0) -> None:
    """Flip a bit of a file. A negative place counts from the end."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def run_python(program: str, *words: object, check: bool = True, **how: Any) -> CompletedProcess[str]:
    """Run a program in a process of its own."""
    command = [sys.executable, "-c", dedent(program), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=check, **how)
