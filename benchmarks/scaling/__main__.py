"""How cost grows with the pool: write, open, random read, prune and encode at 1x, 10x and 100x batches.

    python -m benchmarks.scaling --json benchmarks/results/scaling.json --png benchmarks/results/scaling.png

Bytes and time per row should be flat, and so should memory. Every operation runs in a process of its own,
so that its peak memory is its own; mapped files belong to the page cache and do not count. Labels are real
ImageNet-1K logits, with noise where they repeat.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common.harness import PROJECT, parsed, summarise, write_json
from benchmarks.common.label_source import REAL_LABELS, LabelSource, image_table
from lpld_core.train.settings import preset_named
from lpld_labels import PoolHeader, PoolReader, PoolWriter
from lpld_labels.codecs import codec_named
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.prune import plan_prune, write_pruned
from lpld_labels.transforms.settings import EncodeSettings, PruneSettings

ROWS, CLASSES, IMAGES, PER_EPOCH = 128, 1000, 10_000, 78
"""ImageNet-1K at 10 images per class, in batches of 128."""
STEPS = (1, 10, 100)
BASE, QUICK_BASE = 200, 10
PRUNE_RATIO = 10
READS = 100
WARM_EVERY = 100
"""Batches between those that are read first: less than a shard holds."""
OPENINGS = 15
WATCH_SECONDS = 0.005


def write(labels: Path, folder: Path, batches: int) -> dict[str, float]:
    """Write the pool; making the labels is not counted."""
    augmentation = preset_named("imagenet1k").label.augmentation((224, 224))
    header = PoolHeader(classes=CLASSES, batch_size=ROWS, augmentation=augmentation)
    source = LabelSource.load(labels)
    made = source.batches(batches, rows=ROWS, augmentation=augmentation, images=IMAGES, per_epoch=PER_EPOCH)
    seconds = 0.0
    table = image_table(IMAGES, classes=CLASSES, side=224)
    with PoolWriter(folder / "pool", header=header, images=table, codec=codec_named("f16")) as writer:
        for batch in made:
            start = time.perf_counter()
            writer.append(batch)
            seconds += time.perf_counter() - start
        start = time.perf_counter()
        manifest = writer.commit()
        seconds += time.perf_counter() - start
    grown = sum(entry.bytes for role in ("views", "labels") for entry in manifest.files_of(role))
    return {"seconds": seconds, "rows": manifest.counts.rows, "bytes": pool_bytes(manifest), "grown": grown}


def open_pool(labels: Path, folder: Path, batches: int) -> dict[str, float]:
    """Open the pool again and again; return the median."""
    del labels
    seconds = []
    for _ in range(OPENINGS):
        start = time.perf_counter()
        with PoolReader(folder / "pool") as pool:
            seconds.append(time.perf_counter() - start)
            if len(pool) != batches:
                raise RuntimeError(f"{batches} batches were written, {len(pool)} found")
    return {"seconds": summarise(seconds).median, "rows": batches * ROWS}


def read(labels: Path, folder: Path, batches: int) -> dict[str, float]:
    """Read random batches; return the median time of one, with all shards open as in a training run."""
    del labels
    random = keyed_generator(0, batches)
    seconds = []
    with PoolReader(folder / "pool") as pool:
        for place in range(0, batches, WARM_EVERY):
            pool.read(pool.index.key(place), dtype=np.float16)
        for place in random.integers(0, batches, READS).tolist():
            start = time.perf_counter()
            batch = pool.read(pool.index.key(place), dtype=np.float16)
            seconds.append(time.perf_counter() - start)
            if batch.labels.shape != (ROWS, CLASSES):
                raise RuntimeError(f"{batch.key} came back as {batch.labels.shape}")
    return {"seconds": summarise(seconds).median, "rows": ROWS}


def prune(labels: Path, folder: Path, batches: int) -> dict[str, float]:
    """Prune at random, with the command's own settings; rows are those of the parent."""
    del labels
    with PoolReader(folder / "pool", view_cache_bytes=0, open_shards=2) as pool:
        start = time.perf_counter()
        manifest = write_pruned(plan_prune(pool, PruneSettings(ratio=PRUNE_RATIO)), folder / "pruned")
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "rows": batches * ROWS, "bytes": pool_bytes(manifest)}


def encode(labels: Path, folder: Path, batches: int) -> dict[str, float]:
    """Encode as int8, which needs no fitting, with the command's own settings."""
    del labels
    with PoolReader(folder / "pool", view_cache_bytes=0, open_shards=2) as pool:
        start = time.perf_counter()
        result = encode_pool(pool, folder / "encoded", EncodeSettings(codec="int8"))
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "rows": batches * ROWS, "bytes": result.after}


def idle(labels: Path, folder: Path, batches: int) -> dict[str, float]:
    """Do nothing: what the interpreter and the libraries take."""
    del labels, folder
    return {"seconds": 0.0, "rows": batches * ROWS}


OPERATIONS: Mapping[str, Callable[[Path, Path, int], dict[str, float]]] = {
    "idle": idle,
    "write": write,
    "open": open_pool,
    "read": read,
    "prune": prune,
    "encode": encode,
}


class PrivatePeak:
    """Watches this process's private memory (RssAnon) while it is open; `megabytes` is the largest seen.

    The kernel's own peak counts mapped files too, which grow with the pool and can be dropped any time.
    """

    def __init__(self) -> None:
        self.megabytes = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PrivatePeak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            ended = self._done.wait(WATCH_SECONDS)
            lines = Path("/proc/self/status").read_text().splitlines()
            (line,) = [line for line in lines if line.startswith("RssAnon")]
            self.megabytes = max(self.megabytes, int(line.split()[1]) * 1024 / 1e6)
            if ended:
                return


def measure(labels: Path, *, base: int, steps: Sequence[int] = STEPS) -> list[dict[str, Any]]:
    """Run every operation at every size; return one row each."""
    found = []
    for step in steps:
        with tempfile.TemporaryDirectory() as name:
            for operation in OPERATIONS:
                facts = _in_process(operation, labels, Path(name), base * step)
                found.append({"operation": operation, "size": step, "batches": base * step, **facts})
    return found


def _in_process(operation: str, labels: Path, folder: Path, batches: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scaling", "--operation", operation]
    command += ["--batches", str(batches), "--folder", str(folder), "--labels", str(labels)]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{operation} failed: {ended.stderr}")
    facts: dict[str, Any] = json.loads(ended.stdout)
    return facts


def growth(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, per operation, how its cost grows from each size to the next.

    us_per_row: time of one more row, so that fixed costs (syncing files, fitting) do not count; of a
    random read and of opening, the times themselves. memory: largest size over smallest.
    """
    found: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        mine = sorted((r for r in rows if r["operation"] == operation), key=lambda r: int(r["size"]))
        facts: dict[str, Any] = {"memory": round(mine[-1]["peak_mb"] / mine[0]["peak_mb"], 3)}
        pairs = list(pairwise(mine))
        if operation in ("open", "read"):
            facts["ms"] = [round(row["seconds"] * 1e3, 3) for row in mine]
        elif operation != "idle":
            facts["us_per_row"] = [
                round((b["seconds"] - a["seconds"]) / (b["rows"] - a["rows"]) * 1e6, 2) for a, b in pairs
            ]
        if "grown" in mine[0]:
            facts["bytes_per_row"] = [round(row["grown"] / row["rows"], 1) for row in mine]
        found[operation] = facts
    return found


def show(results: dict[str, Any]) -> None:
    """Print the rows."""
    table = Table(title=f"Cost by pool size ({ROWS} x {CLASSES} labels a batch)")
    for heading in ("operation", "size", "batches", "seconds", "us per row", "bytes per row", "private MB"):
        table.add_column(heading, justify="left" if heading == "operation" else "right")
    for row in results["rows"]:
        per_row = row["seconds"] / row["rows"] * 1e6
        table.add_row(
            row["operation"],
            f"{row['size']}x",
            str(row["batches"]),
            f"{row['seconds']:.4f}",
            f"{per_row:.2f}" if row["operation"] != "open" else "",
            f"{row['grown'] / row['rows']:.1f}" if "grown" in row else "",
            f"{row['peak_mb']:.0f}",
        )
    console = Console()
    console.print(table)
    console.print_json(data=results["growth"])


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw time per row and memory against size."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (times, memory) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for operation in OPERATIONS:
        rows = [row for row in results["rows"] if row["operation"] == operation]
        sizes = [row["batches"] * ROWS for row in rows]
        memory.plot(sizes, [row["peak_mb"] for row in rows], marker="o", label=operation)
        if operation not in ("idle", "open"):
            costs = [row["seconds"] / row["rows"] * 1e6 for row in rows]
            times.plot(sizes, costs, marker="o", label=operation)
    for axes, title in ((times, "time per row, microseconds"), (memory, "peak private memory, MB")):
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("label rows in the pool")
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write results here")
    parser.add_argument("--png", type=Path, help="draw the chart here")
    parser.add_argument("--labels", type=Path, default=REAL_LABELS, help="pool of real logits")
    parser.add_argument("--quick", action="store_true", help="small pools, 1x and 10x only")
    parser.add_argument("--operation", choices=list(OPERATIONS), help=argparse.SUPPRESS)
    parser.add_argument("--batches", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parsed(parser)
    if arguments.operation is not None:
        with PrivatePeak() as peak:
            facts = OPERATIONS[arguments.operation](arguments.labels, arguments.folder, arguments.batches)
        print(json.dumps({**facts, "peak_mb": round(peak.megabytes, 1)}))
        return
    rows = (
        measure(arguments.labels, base=QUICK_BASE, steps=STEPS[:2])
        if arguments.quick
        else measure(arguments.labels, base=BASE)
    )
    results = {"rows": rows, "growth": growth(rows)}
    show(results)
    if arguments.json is not None:
        command = "python -m benchmarks.scaling --json benchmarks/results/scaling.json"
        write_json(arguments.json, benchmark="scaling", command=command, results=results)
    if arguments.png is not None:
        draw(results, arguments.png)


if __name__ == "__main__":
    main()
