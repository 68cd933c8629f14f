"""Reading and writing label batches, against one torch.save file per batch in the same run.

    python -m benchmarks.speed.read_write --json benchmarks/results/read_write.json

Measures, warm cache: random and sequential read of a batch (labels as fp16 array plus metadata), write,
files and bytes on disk, for every form of the pool; opening a pool of 20,000 batches; peak memory of
writing ten times as many batches. Labels are real ImageNet-1K logits, repeated with noise so that no
two batches are equal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common.harness import (
    Timing,
    interleaved,
    parsed,
    peak_memory_mb,
    summarise,
    write_json,
)
from benchmarks.common.label_source import REAL_LABELS, repeated_batches
from lpld_labels import (
    Augmentation,
    BatchKey,
    ImageTable,
    LabelBatch,
    PoolHeader,
    PoolReader,
    PoolWriter,
)
from lpld_labels.codecs import codec_named

CODECS = ("f16", "f16:plain", "int8")
NATIVE = "int8 as float32"
"""int8 decodes to float32; the benchmark reads it as float16 like the others, and once as it is."""
BATCHES_PER_EPOCH = 50
SIDE = 224


def image_table(count: int, size: int) -> ImageTable:
    """Return a table of square images, one per class; digests as incompressible as real ones."""
    rng = np.random.default_rng(1)
    side = np.full(count, size, np.int32)
    return ImageTable(
        paths=[f"{i:05d}/{i:05d}_0.jpg" for i in range(count)],
        classes=np.arange(count, dtype=np.int32),
        widths=side,
        heights=side,
        digests=[rng.bytes(16) for _ in range(count)],
    )


def pool_writer(path: Path, codec: str) -> PoolWriter:
    """Return a writer for ImageNet-1K batches of 128."""
    augmentation = Augmentation(output_height=SIDE, output_width=SIDE, resize="pil", mix="cutmix")
    header = PoolHeader(classes=1000, batch_size=128, augmentation=augmentation)
    return PoolWriter(path, header=header, images=image_table(1000, SIDE), codec=codec_named(codec))


def write_all(folder: Path, batches: list[LabelBatch]) -> dict[str, float]:
    """Write every layout; return seconds per batch."""
    # Imported where it is used: the memory probe must not carry a gigabyte of torch.
    from benchmarks.common.pickle_layout import save_pickle_batch

    seconds = {}
    (folder / "pickle").mkdir()
    start = time.perf_counter()
    for number, batch in enumerate(batches):
        save_pickle_batch(folder / "pickle" / f"batch_{number}.tar", batch, side=SIDE, safe=True)
    seconds["pickle"] = (time.perf_counter() - start) / len(batches)
    for codec in CODECS:
        start = time.perf_counter()
        with pool_writer(folder / codec.replace(":", "-"), codec) as writer:
            for batch in batches:
                writer.append(batch)
            writer.commit()
        seconds[codec] = (time.perf_counter() - start) / len(batches)
    return seconds


def readers(folder: Path, count: int, order: Callable[[], int]) -> dict[str, Callable[[], object]]:
    """Return one read-a-batch function per layout; `order` gives the number of the batch to read."""
    import torch

    def pickle_full() -> object:
        return torch.load(folder / "pickle" / f"batch_{order()}.tar", weights_only=False)

    def pickle_safe() -> object:
        return torch.load(folder / "pickle" / f"batch_{order()}.tar", weights_only=True)

    found: dict[str, Callable[[], object]] = {"pickle": pickle_full, "pickle weights_only": pickle_safe}
    for codec in CODECS:
        pool = PoolReader(folder / codec.replace(":", "-"))
        if len(pool) != count:
            raise RuntimeError(f"{codec}: wrote {count} batches, found {len(pool)}")

        def read(pool: PoolReader = pool) -> object:
            return pool.read(pool.index.key(order()), dtype=np.float16)

        found[codec] = read
        if codec == "int8":

            def read_native(pool: PoolReader = pool) -> object:
                return pool.read(pool.index.key(order()))

            found[NATIVE] = read_native
    return found


def check(folder: Path, batches: list[LabelBatch]) -> None:
    """Refuse to measure something that is wrong."""
    for codec in CODECS:
        with PoolReader(folder / codec.replace(":", "-")) as pool:
            for batch in batches[:: max(1, len(batches) // 10)]:
                labels = pool.read(batch.key, dtype=np.float16).labels
                limit = 0.0 if codec.startswith("f16") else 0.1
                if np.abs(labels.astype(np.float32) - batch.labels).max() > limit:
                    raise RuntimeError(f"{codec}: labels of {batch.key} came back different")


def sequential(folder: Path, count: int) -> dict[str, float]:
    """Return seconds per batch of reading everything in order."""
    import torch

    seconds = {}
    for name in ("pickle", *CODECS):
        start = time.perf_counter()
        if name == "pickle":
            for number in range(count):
                torch.load(folder / "pickle" / f"batch_{number}.tar", weights_only=False)
        else:
            for _ in PoolReader(folder / name.replace(":", "-")).iterate(dtype=np.float16):
                pass
        seconds[name] = (time.perf_counter() - start) / count
    return seconds


def on_disk(folder: Path, name: str) -> tuple[int, int]:
    """Return bytes and number of files of a layout."""
    files = [path for path in (folder / name.replace(":", "-")).rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files), len(files)


def open_time(folder: Path, batches: int) -> Timing:
    """Return the time to open a pool of many batches (10 classes, 16 rows each) after imports."""
    images = image_table(10, 32)
    augmentation = Augmentation(output_height=32, output_width=32, resize="torch")
    header = PoolHeader(classes=10, batch_size=16, augmentation=augmentation)
    rng = np.random.default_rng(0)
    crops = np.tile(np.array([0, 0, 32, 32], np.int32), (16, 1))
    with PoolWriter(folder / "many", header=header, images=images) as writer:
        for number in range(batches):
            writer.append(
                LabelBatch(
                    key=BatchKey(number // 100, number % 100),
                    images=rng.integers(0, 10, 16).astype(np.int32),
                    crops=crops,
                    flips=rng.random(16) < 0.5,
                    labels=rng.normal(size=(16, 10)).astype(np.float16),
                )
            )
        writer.commit()
    seconds = []
    for _ in range(15):
        start = time.perf_counter()
        pool = PoolReader(folder / "many")
        seconds.append(time.perf_counter() - start)
        pool.close()
    return summarise(seconds)


def memory_probe(labels: Path, count: int) -> None:
    """Write `count` batches and print the peak memory in MB (run in a process of its own)."""
    with tempfile.TemporaryDirectory() as name, pool_writer(Path(name) / "pool", "f16") as writer:
        for batch in repeated_batches(labels, count, per_epoch=BATCHES_PER_EPOCH):
            writer.append(batch)
        writer.commit()
    print(peak_memory_mb())


def peak_of(labels: Path, count: int) -> float:
    """Return the peak memory in MB of a process that writes `count` batches."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.speed.read_write",
        "--labels",
        str(labels),
        "--memory-probe",
        str(count),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    return float(ended.stdout)


def measure(labels: Path, *, batches: int, reads: int, many: int, probe: int) -> dict[str, Any]:
    """Run everything and return the results."""
    source = list(repeated_batches(labels, batches, per_epoch=BATCHES_PER_EPOCH))
    rng = np.random.default_rng(2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write = write_all(folder, source)
        check(folder, source)
        random = interleaved(
            readers(folder, batches, lambda: int(rng.integers(batches))), runs=reads, warm_up=min(reads, 20)
        )
        in_order = sequential(folder, batches)
        base_bytes, base_files = on_disk(folder, "pickle")
        base = random["pickle"].median
        layouts: dict[str, Any] = {
            "pickle": {"bytes": base_bytes, "files": base_files},
            "pickle weights_only": {},
            NATIVE: {},
        }
        for codec in CODECS:
            size, files = on_disk(folder, codec)
            layouts[codec] = {"bytes": size, "files": files, "bytes_ratio": round(size / base_bytes, 4)}
        for layout, timing in random.items():
            layouts[layout]["random_read"] = timing.as_json()
            layouts[layout]["random_read_ratio"] = round(timing.median / base, 3)
        for layout, value in write.items():
            layouts[layout]["write_s"] = round(value, 6)
            layouts[layout]["write_ratio"] = round(value / write["pickle"], 3)
            layouts[layout]["sequential_read_s"] = round(in_order[layout], 6)
            layouts[layout]["sequential_read_ratio"] = round(in_order[layout] / in_order["pickle"], 3)
        opening = open_time(folder, many)
    small, large = peak_of(labels, probe), peak_of(labels, 10 * probe)
    return {
        "batches": batches,
        "layouts": layouts,
        "open": {"batches": many, **opening.as_json()},
        "write_memory_mb": {str(probe): round(small, 1), str(10 * probe): round(large, 1)},
    }


def show(results: dict[str, Any]) -> None:
    """Print the results as a table."""
    table = Table(title="One ImageNet-1K batch (128 x 1000), times relative to torch.load / torch.save")
    for heading in ("layout", "bytes", "files", "random read", "us", "sequential", "write"):
        table.add_column(heading, justify="left" if heading == "layout" else "right")
    for name, row in results["layouts"].items():
        table.add_row(
            name,
            f"{row['bytes_ratio']:.3f}x" if "bytes_ratio" in row else "",
            str(row.get("files", "")),
            f"{row['random_read_ratio']:.2f}x",
            f"{row['random_read']['median_s'] * 1e6:.0f}",
            f"{row['sequential_read_ratio']:.2f}x" if "sequential_read_ratio" in row else "",
            f"{row['write_ratio']:.2f}x" if "write_ratio" in row else "",
        )
    console = Console()
    console.print(table)
    opening = results["open"]
    console.print(f"opening {opening['batches']} batches: {opening['median_s'] * 1e3:.1f} ms")
    console.print(f"peak memory of writing, MB by batches: {json.dumps(results['write_memory_mb'])}")


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write results here")
    parser.add_argument("--labels", type=Path, default=REAL_LABELS, help="pool of real logits")
    parser.add_argument("--quick", action="store_true", help="a few batches only")
    parser.add_argument("--memory-probe", type=int, help=argparse.SUPPRESS)
    arguments = parsed(parser)
    if arguments.memory_probe is not None:
        memory_probe(arguments.labels, arguments.memory_probe)
        return
    size = (
        {"batches": 20, "reads": 20, "many": 500, "probe": 5}
        if arguments.quick
        else {"batches": 400, "reads": 500, "many": 20_000, "probe": 400}
    )
    results = measure(arguments.labels, **size)
    show(results)
    if arguments.json is not None:
        command = "python -m benchmarks.speed.read_write --json benchmarks/results/read_write.json"
        write_json(arguments.json, benchmark="read_write", command=command, results=results)


if __name__ == "__main__":
    main()
