"""How fast pools stream: images per second into a training step, label batches per second at random.

    python -m benchmarks.speed.loader --json benchmarks/results/loader_throughput.json

End to end: JPEG folder and pool on disk to normalised, mixed float32 batches with float32 labels, at 224 px
and 64 px, with 0 and 2 workers, against a baseline in the same run that
loads the same label batches as relabelling programs do today (reference_loader.py). The pool's decoded
images are cached, as they are in any training run; the first epoch, which fills the cache, is given too.

Random label batches: one at a time in random order, warm cache, against other containers that hold the same
batches (label_peers.py). Needs `pip install "lpld-labels[peers]"` for the comparison to be complete;
containers that are missing or fail are named under "failed_peers".
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.harness import Timing, interleaved, parsed, write_json
from benchmarks.common.label_source import REAL_LABELS, real_batches
from benchmarks.common.photos import add_images_option, photo_folder
from benchmarks.speed.label_peers import Read, open_peers, peer_folder
from benchmarks.speed.reference_loader import (
    ReferenceDataset,
    reference_batches,
    reference_loader,
    write_reference_folder,
)
from lpld_labels import Augmentation, LabelBatch, PoolHeader, PoolReader, PoolWriter, Teacher
from lpld_labels.codecs import codec_named
from lpld_labels.loader import PoolLoader, pool_loader
from lpld_labels.render import batches_per_epoch, draw_views
from lpld_labels.render.images import scan_image_folder

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FORMS = ("f16", "f16:plain", "int8")
PASSES = 6
"""Over the images in one run. Both loaders fill their pipeline at its start, and ours throws away what
workers had prepared beyond the end of the run before, which no training does."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured.

    batch: rows of a label batch. epochs: of the pool. runs: repetitions. reads: random reads in each.
    """

    batch: int
    images: int
    epochs: int
    runs: int
    reads: int
    label_batches: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """What is measured on: a pool of real logits, and a folder of photos if not those of packages."""

    labels: Path = REAL_LABELS
    images: Path | None = None


FULL = Scale(batch=128, images=768, epochs=7, runs=5, reads=60, label_batches=168)
QUICK = Scale(batch=8, images=16, epochs=1, runs=1, reads=4, label_batches=6)


def build_pool(
    source: Source, path: Path, images: Path, size: int, scale: Scale, form: str = "f16"
) -> PoolReader:
    """Write a CutMix pool over the photos with real logits, repeated with noise where they run out."""
    logits = np.stack([batch.labels for batch in real_batches(source.labels)])
    rng = np.random.default_rng(0)
    table = scan_image_folder(images)
    augmentation = Augmentation(
        output_height=size,
        output_width=size,
        resize="torch",
        crop_scale=(0.08, 1.0),
        flip_probability=0.5,
        mix="cutmix",
        mix_alpha=1.0,
    )
    teacher = Teacher(name="efficientnet-lite0", mean=MEAN, std=STD)
    header = PoolHeader(
        classes=logits.shape[2],
        batch_size=scale.batch,
        augmentation=augmentation,
        seed=0,
        teachers=(teacher,),
    )
    with PoolWriter(path, header=header, images=table, codec=codec_named(form)) as writer:
        for epoch in range(scale.epochs):
            for batch in range(batches_per_epoch(len(table), scale.batch)):
                number = epoch * batches_per_epoch(len(table), scale.batch) + batch
                views = draw_views(
                    augmentation, table, seed=0, epoch=epoch, batch=batch, batch_size=scale.batch
                )
                labels = logits[number % len(logits)][: views.rows]
                if number >= len(logits):
                    labels = (labels + rng.normal(0, 0.05, labels.shape)).astype(np.float16)
                writer.append(LabelBatch(**vars(views), labels=labels))
        writer.commit()
    return PoolReader(path)


# End to end


def our_images(loader: PoolLoader) -> Callable[[], int]:
    """Return a function that plays one epoch from a standing start and counts its images."""

    def play() -> int:
        # Setting the epoch throws away what workers have prepared ahead: the baseline has no such lead.
        loader.set_epoch(1 + loader.state_dict()["epoch"])
        return sum(len(batch.images) for batch in loader)

    return play


def their_images(loader: Any) -> Callable[[], int]:
    """Return the same for the baseline."""
    return lambda: sum(len(images) for images, _ in reference_batches(loader))


def same_batches(ours: PoolLoader, theirs: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    """Check that both loaders give the same batches; resizing differs in the last grey levels only."""
    worst = mean = 0.0
    for batch, (images, labels) in zip(ours, theirs, strict=True):
        if not torch.equal(batch.labels, labels):
            raise RuntimeError("the loaders disagree about labels")
        grey = (batch.images - images).abs() * torch.tensor(STD)[:, None, None] * 255
        worst, mean = max(worst, float(grey.max())), max(mean, float(grey.mean()))
    if mean > 0.5:
        raise RuntimeError(f"the loaders disagree about images: {mean} grey levels on average")
    return {"mean_grey_levels": round(mean, 4), "largest_grey_levels": round(worst, 2)}


def end_to_end(source: Source, folder: Path, scale: Scale, workers: tuple[int, ...]) -> dict[str, Any]:
    """Measure images per second at both sizes and all numbers of workers."""
    results: dict[str, Any] = {}
    for size in (224, 64):
        images = photo_folder(folder / f"images{size}", side=size, count=scale.images, images=source.images)
        pool = build_pool(source, folder / f"pool{size}", images, size, scale)
        write_reference_folder(pool, folder / f"reference{size}")
        dataset = ReferenceDataset(pool, images, folder / f"reference{size}", MEAN, STD)
        length = PASSES * batches_per_epoch(len(pool.images), scale.batch)
        keys = [pool.keys[number % len(pool)] for number in range(length)]
        for count in workers:
            ours = pool_loader(pool, images, sampling="stored", batches_per_epoch=length, num_workers=count)
            start = time.perf_counter()
            first = sum(len(batch.images) for batch in ours)
            first_epoch = time.perf_counter() - start
            theirs = reference_loader(dataset, keys, num_workers=count)
            ours.set_epoch(0)
            agreement = same_batches(ours, reference_batches(theirs))
            timings = interleaved(
                {"baseline": their_images(theirs), "lpld-labels": our_images(ours)},
                runs=scale.runs,
                warm_up=1,
            )
            results[f"{size} px, {count} workers"] = {
                **{name: rates(timing, PASSES * len(pool.images)) for name, timing in timings.items()},
                "first_epoch_images_per_s": round(first / first_epoch, 1),
                "speedup": round(timings["baseline"].median / timings["lpld-labels"].median, 2),
                "agreement": agreement,
            }
            del ours, theirs
    return results


def rates(timing: Timing, count: int) -> dict[str, float]:
    """Return events per second: median and quartiles."""
    return {
        "per_s": round(count / timing.median, 1),
        "quartile_low": round(count / timing.high, 1),
        "quartile_high": round(count / timing.low, 1),
        "runs": timing.runs,
    }


# Random label batches


def random_labels(source: Source, folder: Path, scale: Scale) -> tuple[dict[str, Any], dict[str, str]]:
    """Measure label batches per second at random for every container; return also why containers failed."""
    photos = photo_folder(folder / "images", side=224, count=scale.batch, images=source.images)
    smaller = Scale(**{**vars(scale), "images": scale.batch, "epochs": scale.label_batches})
    pools = {
        form: build_pool(source, folder / form.replace(":", "-"), photos, 224, smaller, form)
        for form in FORMS
    }
    batches = list(pools["f16"])
    reads, failed = open_peers(folder, batches)
    for form, pool in pools.items():
        reads[f"lpld-labels {form}"] = pool_read(pool)
    for name, read in reads.items():
        exact = name != "lpld-labels int8"
        if exact and not np.array_equal(read(1)["labels"].astype(np.float16), batches[1].labels):
            raise RuntimeError(f"{name} gives other labels than it was given")
    rng = np.random.default_rng(1)

    def random_reads(read: Read) -> Callable[[], object]:
        return lambda: [read(number) for number in rng.integers(0, len(batches), scale.reads).tolist()]

    timings = interleaved({name: random_reads(read) for name, read in reads.items()}, runs=4 * scale.runs)
    results: dict[str, Any] = {name: rates(timing, scale.reads) for name, timing in timings.items()}
    for name, row in results.items():
        row["bytes_per_batch"] = _bytes_per_batch(name, folder, pools, len(batches))
    return results, failed


def pool_read(pool: PoolReader) -> Read:
    """Return a reader of a pool's batches: labels and views, as one would train on them."""
    keys = pool.keys

    def read(number: int) -> dict[str, Any]:
        batch = pool.read(keys[number])
        return {"labels": batch.labels, "views": batch}

    return read


def _bytes_per_batch(name: str, folder: Path, pools: dict[str, PoolReader], batches: int) -> int:
    form = name.removeprefix("lpld-labels ")
    place = Path(pools[form].location) if form in pools else peer_folder(folder, name)
    sizes = [path.stat().st_size for path in place.rglob("*") if path.is_file() and "cache" not in path.parts]
    return round(sum(sizes) / batches)


def report(results: dict[str, Any]) -> None:
    """Print the results as tables."""
    console = Console()
    table = Table("end to end", "baseline images/s", "lpld-labels images/s", "ratio", "first epoch")
    for name, row in results["end_to_end"].items():
        numbers = [f"{row[who]['per_s']:.0f}" for who in ("baseline", "lpld-labels")]
        table.add_row(name, *numbers, f"{row['speedup']:.2f}", f"{row['first_epoch_images_per_s']:.0f}")
    console.print(table)
    table = Table("random label batches", "batches/s", "quartiles", "bytes/batch")
    for name, row in sorted(results["random_labels"].items(), key=lambda item: -item[1]["per_s"]):
        spread = f"{row['quartile_low']:.0f} to {row['quartile_high']:.0f}"
        table.add_row(name, f"{row['per_s']:.0f}", spread, str(row["bytes_per_batch"]))
    console.print(table)
    for name, reason in results["failed_peers"].items():
        console.print(f"not measured: {name} ({reason})")


def run(source: Source, scale: Scale, workers: tuple[int, ...] = (0, 2)) -> dict[str, Any]:
    """Measure everything in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        throughput = end_to_end(source, Path(folder) / "images", scale, workers)
        labels, failed = random_labels(source, Path(folder) / "labels", scale)
    return {
        "scale": vars(scale),
        "end_to_end": throughput,
        "random_labels": labels,
        "failed_peers": failed,
    }


def main() -> None:
    """Read the command line, measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    parser.add_argument("--labels", type=Path, default=REAL_LABELS, help="pool of real logits")
    add_images_option(parser)
    options = parsed(parser)
    results = run(Source(labels=options.labels, images=options.images), QUICK if options.quick else FULL)
    report(results)
    if options.json:
        write_json(
            options.json,
            benchmark="loader_throughput",
            command="python -m benchmarks.speed.loader --json benchmarks/results/loader_throughput.json",
            results=results,
        )


if __name__ == "__main__":
    main()
