"""Pruning a large pool: seconds, peak memory, bytes read; and how soon a loader on it yields a batch.

    python -m benchmarks.speed.pruning --gb 6 --json benchmarks/results/prune_speed.json

The pool is made of real ImageNet-1K logits, repeated with noise so that no two batches are equal.
Pruning runs in a process of its own, whose peak memory is that of the pruning. `--pool` keeps the large pool
for another run. The result is checked: the right number of batches, each with its parent's digest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.common.harness import parsed, write_json
from benchmarks.common.label_source import REAL_LABELS, real_batches
from lpld_labels import Augmentation, ImageTable, LabelBatch, PoolHeader, PoolReader, PoolWriter, Teacher
from lpld_labels.codecs import codec_named
from lpld_labels.render import batches_per_epoch, draw_views

BATCH = 128
IMAGES = 10_000
NOISE = 24
"""How many noisy copies of the real batches are made before they come again, labels shifted by a class."""


def write_large_pool(labels: Path, path: Path, gigabytes: float, codec: str = "f16") -> PoolReader:
    """Write a pool of about so many GB of label bytes over a table of 224 px images.

    codec: "f16", or "f16:plain" for values as they are.
    """
    logits = np.stack([batch.labels for batch in real_batches(labels)])
    rng = np.random.default_rng(0)
    side = np.full(IMAGES, 224, np.int32)
    table = ImageTable(
        paths=[f"{i // 10:04d}/{i % 10}.jpg" for i in range(IMAGES)],
        classes=(np.arange(IMAGES) // 10).astype(np.int32),
        widths=side,
        heights=side,
        digests=[rng.bytes(16) for _ in range(IMAGES)],
    )
    augmentation = Augmentation(
        output_height=224,
        output_width=224,
        resize="torch",
        crop_scale=(0.08, 1.0),
        flip_probability=0.5,
        mix="cutmix",
        mix_alpha=1.0,
    )
    teacher = Teacher(name="efficientnet-lite0", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    header = PoolHeader(
        classes=1000, batch_size=BATCH, augmentation=augmentation, seed=0, teachers=(teacher,)
    )
    noise = rng.normal(0, 0.05, (NOISE, *logits.shape[1:])).astype(np.float16)
    per_epoch = batches_per_epoch(IMAGES, BATCH)
    # Compact fp16 stores a value in about 1.7 bytes.
    width = 2.0 if codec == "f16:plain" else 1.7
    with PoolWriter(path, header=header, images=table, codec=codec_named(codec)) as writer:
        size = 0
        number = 0
        while size < gigabytes * 1e9:
            epoch, batch = divmod(number, per_epoch)
            views = draw_views(augmentation, table, seed=0, epoch=epoch, batch=batch, batch_size=BATCH)
            moved = np.roll(
                logits[number % len(logits)] + noise[number % NOISE], number // len(logits), axis=1
            )
            writer.append(LabelBatch(**vars(views), labels=moved[: views.rows]))
            size += int(views.rows * 1000 * width)
            number += 1
        writer.commit()
    return PoolReader(path)


PRUNE = """
    import json, sys, time
    from pathlib import Path

    def peak_kb():
        # Of this program alone; getrusage would count the process that started it too.
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

    start = time.perf_counter()
    from lpld_labels import PoolReader
    from lpld_labels.transforms.prune import plan_prune, write_pruned
    from lpld_labels.transforms.settings import PruneSettings
    imported = time.perf_counter()
    at_rest = peak_kb()
    pool, out, settings = sys.argv[1:]
    with PoolReader(pool, view_cache_bytes=0, open_shards=2) as reader:
        manifest = write_pruned(plan_prune(reader, PruneSettings(**json.loads(settings))), out)
    assert "torch" not in sys.modules
    peak = peak_kb()
    print(json.dumps({
        "seconds": round(time.perf_counter() - imported, 3),
        "import_seconds": round(imported - start, 3),
        "peak_memory_mb": round(peak * 1024 / 1e6, 1),
        "memory_before_mb": round(at_rest * 1024 / 1e6, 1),
        "batches": manifest.counts.batches,
        "bytes": sum(entry.bytes for entry in manifest.files),
    }))
"""


def measure_prune(pool: PoolReader, out: Path, **settings: Any) -> dict[str, Any]:
    """Prune in a process of its own and check the result."""
    words = [sys.executable, "-c", textwrap.dedent(PRUNE), pool.location, str(out), json.dumps(settings)]
    result: dict[str, Any] = json.loads(
        subprocess.run(words, capture_output=True, text=True, check=True).stdout
    )
    child = PoolReader(out)
    complete = int((pool.index.rows == BATCH).sum())
    if len(child) != int(complete / settings["ratio"]):
        raise RuntimeError(f"{len(child)} of {complete} batches were kept")
    for key in child.keys:
        if child.read_encoded(key).digest != pool.read_encoded(key).digest:
            raise RuntimeError(f"{key} is not its parent's")
    return result


FIRST = """
    import json, sys, time
    from lpld_labels.loader import label_loader
    start = time.perf_counter()
    loader = label_loader(sys.argv[1], num_workers=int(sys.argv[2]))
    next(iter(loader)).labels()
    print(json.dumps(time.perf_counter() - start))
"""


def first_batch_seconds(pool: PoolReader, workers: int) -> float:
    """Return the seconds from opening a pool to the first decoded label batch, in a new process."""
    words = [sys.executable, "-c", textwrap.dedent(FIRST), pool.location, str(workers)]
    seconds: float = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return round(seconds, 3)


def run(labels: Path, pool_path: Path, work: Path, gigabytes: float) -> dict[str, Any]:
    """Make the large pool where it is missing, prune it and load from it."""
    if not (pool_path / "pool.json").exists():
        pool = write_large_pool(labels, pool_path, gigabytes)
    else:
        pool = PoolReader(pool_path)
    ratio = 40 if len(pool) > 200 else 4
    return {
        "pool": {
            "bytes": sum(entry.bytes for entry in pool.manifest.files),
            "batches": len(pool),
            "rows": pool.manifest.counts.rows,
        },
        "ratio": ratio,
        "random, batch level": measure_prune(pool, work / "batch", ratio=ratio),
        "random, epoch level": measure_prune(pool, work / "epoch", ratio=ratio, level="epoch"),
        "hard by confidence": measure_prune(pool, work / "hard", ratio=ratio, by="confidence", prefer="hard"),
        "first_batch_seconds": {f"{n} workers": first_batch_seconds(pool, n) for n in (0, 2)},
    }


def main() -> None:
    """Read the command line, measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gb", type=float, default=6.0, help="label bytes of the pool in GB")
    parser.add_argument("--pool", type=Path, help="where the large pool is or shall be kept")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    parser.add_argument("--labels", type=Path, default=REAL_LABELS, help="pool of real logits")
    options = parsed(parser)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        gigabytes = 0.005 if options.quick else options.gb
        results = run(options.labels, options.pool or work / "pool", work, gigabytes)
    Console().print_json(data=results)
    if options.json:
        write_json(
            options.json,
            benchmark="prune_speed",
            command=f"python -m benchmarks.speed.pruning --gb {gigabytes:g}",
            results=results,
        )


if __name__ == "__main__":
    main()
