"""Importing a label folder, against torch.load of the same files in the same run.

    python -m benchmarks.speed.importing --json benchmarks/results/import_speed.json

The folder is what ImageNet-1K with 10 images per class leaves after 40x pruning: 585 batches of 128
rows in LPLD's layout, real logits with noise, and 10,000 images. Each import runs in a process of its
own. Reported: MB of labels per second of wall clock and per second of one core's work, the share of
reading the images, and peak memory for one and four times as many batches. Two baselines run in between:
torch.load of every file, which is the least any program does with them, and the bare work of an import
(read, CRC-32, SHA-256, byte planes, zstd, write) without any format around it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from rich.console import Console
from rich.table import Table

from benchmarks.common.harness import parsed, peak_memory_mb, summarise, write_json
from benchmarks.common.label_source import REAL_LABELS, repeated_batches
from benchmarks.common.photos import add_images_option, photo_folder
from lpld_labels.exec.local import LocalExecutor
from lpld_labels.interop.batch_file import read_batch_file
from lpld_labels.interop.importing import import_labels
from lpld_labels.interop.layouts import SRE2L
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.images import scan_image_folder

ROWS = 128
CLASSES = 1000
SIDE = 224
LABEL_BYTES = ROWS * CLASSES * 2


def write_folder(folder: Path, labels: Path, *, batches: int, images: int) -> None:
    """Write an LPLD folder of whole batches; an epoch has as many as fit the images."""
    from benchmarks.common.pickle_layout import save_pickle_batch

    random = np.random.default_rng(0)
    per_epoch = images // ROWS
    ids: dict[str, list[int]] = {}
    order = np.empty(0, np.int64)
    for batch in repeated_batches(labels, batches, per_epoch=per_epoch):
        if batch.key.batch == 0:
            order = random.permutation(images)
            (folder / f"epoch_{batch.key.epoch}").mkdir(parents=True)
        file = folder / f"epoch_{batch.key.epoch}" / f"batch_{batch.key.batch}.tar"
        save_pickle_batch(file, batch, side=SIDE)
        first = batch.key.batch * ROWS
        ids.setdefault(str(batch.key.epoch), []).extend(order[first : first + ROWS].tolist())
    (folder / "sampler_indices_epoch.json").write_text(json.dumps(ids))


def repeat_folder(folder: Path, source: Path, times: int) -> None:
    """Make a folder `times` as long out of links to the files of another one."""
    ids = json.loads((source / "sampler_indices_epoch.json").read_text())
    epochs = len(ids)
    longer = {}
    for epoch in range(epochs * times):
        (folder / f"epoch_{epoch}").mkdir(parents=True)
        for file in sorted((source / f"epoch_{epoch % epochs}").iterdir()):
            os.link(file, folder / f"epoch_{epoch}" / file.name)
        longer[str(epoch)] = ids[str(epoch % epochs)]
    (folder / "sampler_indices_epoch.json").write_text(json.dumps(longer))


def import_once(source: Path, pool: Path, images: Path, jobs: int) -> dict[str, Any]:
    """Import in this process; return seconds, work and memory."""
    start, before = time.perf_counter(), _work()
    table = scan_image_folder(images, decode=False)
    scanned, middle = time.perf_counter(), _work()
    report = import_labels(source, pool, images=table, executor=LocalExecutor(jobs))
    return {
        "batches": report.batches,
        "scan_s": scanned - start,
        "scan_cpu_s": middle - before,
        "import_s": time.perf_counter() - scanned,
        "import_cpu_s": _work() - middle,
        "peak_memory_mb": max(peak_memory_mb(), _peak_of_children_mb()),
        "pool_bytes": report.pool_bytes,
        "source_bytes": report.source_bytes,
    }


def _peak_of_children_mb() -> float:
    """Return the peak memory of the largest child process, in MB."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6


def _work() -> float:
    """Return processor seconds of this process and the children it waited for."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def load_once(source: Path) -> dict[str, float]:
    """Read every file with torch.load in this process; return seconds and work."""
    import torch

    torch.set_num_threads(1)
    start, before = time.perf_counter(), _work()
    files = sorted(source.rglob("*.tar"))
    for file in files:
        torch.load(file, weights_only=False)
    return {"load_s": time.perf_counter() - start, "load_cpu_s": _work() - before, "batches": len(files)}


def bare_work(source: Path, out: Path) -> dict[str, float]:
    """Do what no import can do without, on the same bytes; return seconds and work."""
    start, before = time.perf_counter(), _work()
    with out.open("wb") as sink:
        for file in sorted(source.rglob("*.tar")):
            data = file.read_bytes()
            zlib.crc32(data)
            labels = memoryview(data)[-LABEL_BYTES:]
            hashlib.sha256(labels).digest()
            words = np.frombuffer(labels, np.uint16)
            for plane in (words.astype(np.uint8), (words >> 8).astype(np.uint8)):
                blob = zstandard.ZstdCompressor(level=3).compress(plane.data)
                hashlib.sha256(blob).digest()
                zlib.crc32(blob)
                sink.write(blob)
    return {"bare_s": time.perf_counter() - start, "bare_cpu_s": _work() - before}


def child(*arguments: object) -> dict[str, Any]:
    """Run this script in a fresh process, so that memory and imports are its own."""
    command = [sys.executable, "-m", "benchmarks.speed.importing", "--child", *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def check(source: Path, pool: Path, batches: int) -> None:
    """Refuse to report the speed of an import that changed a label."""
    with PoolReader(pool) as reader:
        if len(reader) != batches:
            raise RuntimeError(f"expected {batches} batches, the pool has {len(reader)}")
        for key in reader.keys[:: max(1, batches // 20)]:
            stored = read_batch_file(source / f"epoch_{key.epoch}" / f"batch_{key.batch}.tar", SRE2L.items)
            if reader.read(key).labels.tobytes() != stored.labels.tobytes():
                raise RuntimeError(f"labels of {key} came back different")


def measure(
    work: Path,
    labels: Path,
    *,
    batches: int,
    images: int,
    runs: int,
    times: int,
    photos_from: Path | None = None,
) -> dict[str, Any]:
    """Return all results."""
    source = work / "labels"
    photos = photo_folder(work / "images", side=SIDE, count=images, images=photos_from)
    write_folder(source, labels, batches=batches, images=images)
    found: dict[str, list[dict[str, Any]]] = {"1": [], "2": [], "load": [], "bare": []}
    for run in range(runs):
        for jobs in ("1", "2"):
            pool = work / f"pool-{jobs}-{run}"
            found[jobs].append(child("import", source, pool, photos, jobs))
            check(source, pool, batches)
        found["load"].append(child("load", source))
        found["bare"].append(child("bare", source, work / "bare"))
    repeat_folder(work / "long", source, times)
    long = []
    for run in range(runs):
        long.append(child("import", work / "long", work / f"pool-long-{run}", photos, 1))
        shutil.rmtree(work / f"pool-long-{run}")
    return _summary(found, long, batches)


def _summary(
    found: dict[str, list[dict[str, Any]]], long: list[dict[str, Any]], batches: int
) -> dict[str, Any]:
    megabytes = batches * LABEL_BYTES / 1e6
    results: dict[str, Any] = {"batches": batches, "label_mb": megabytes}
    load = summarise([run["load_s"] for run in found["load"]])
    load_cpu = summarise([run["load_cpu_s"] for run in found["load"]])
    bare = summarise([run["bare_s"] for run in found["bare"]])
    bare_cpu = summarise([run["bare_cpu_s"] for run in found["bare"]])
    results["torch_load"] = {
        **load.as_json(),
        "mb_per_s": megabytes / load.median,
        "mb_per_core_s": megabytes / load_cpu.median,
    }
    results["bare_work"] = {
        **bare.as_json(),
        "mb_per_s": megabytes / bare.median,
        "mb_per_core_s": megabytes / bare_cpu.median,
    }
    for jobs in ("1", "2"):
        wall = summarise([run["import_s"] for run in found[jobs]])
        cpu = summarise([run["import_cpu_s"] for run in found[jobs]])
        scan = summarise([run["scan_s"] for run in found[jobs]])
        results[f"import_jobs_{jobs}"] = {
            **wall.as_json(),
            "mb_per_s": megabytes / wall.median,
            "mb_per_core_s": megabytes / cpu.median,
            "core_work_to_torch_load": cpu.median / load_cpu.median,
            "core_work_to_bare_work": cpu.median / bare_cpu.median,
            "reading_images_s": scan.median,
            "peak_memory_mb": max(run["peak_memory_mb"] for run in found[jobs]),
        }
    first = found["1"][0]
    results["bytes_ratio"] = first["pool_bytes"] / first["source_bytes"]
    total = long[0]["batches"] * LABEL_BYTES / 1e6
    work = summarise([run["import_cpu_s"] for run in long])
    results["long"] = {
        "batches": long[0]["batches"],
        "peak_memory_mb": max(run["peak_memory_mb"] for run in long),
        "core_seconds": work.as_json(),
        "mb_per_core_s": total / work.median,
        # What each further MB costs, once the program has started and listed its images.
        "further_mb_per_core_s": (total - megabytes)
        / (work.median - summarise([run["import_cpu_s"] for run in found["1"]]).median),
    }
    return results


def show(results: dict[str, Any]) -> None:
    """Print a table."""
    table = Table(title=f"{results['batches']} batches, {results['label_mb']:.0f} MB of labels")
    for column in ("", "seconds", "MB/s", "MB per core second", "peak MB of a process"):
        table.add_column(column)
    for name, baseline in (("torch.load only", "torch_load"), ("bare work", "bare_work")):
        one = results[baseline]
        table.add_row(
            name, f"{one['median_s']:.2f}", f"{one['mb_per_s']:.0f}", f"{one['mb_per_core_s']:.0f}", ""
        )
    for jobs in ("1", "2"):
        one = results[f"import_jobs_{jobs}"]
        table.add_row(
            f"import, {jobs} process{'es' if jobs == '2' else ''}",
            f"{one['median_s']:.2f} (+ {one['reading_images_s']:.2f} for the images)",
            f"{one['mb_per_s']:.0f}",
            f"{one['mb_per_core_s']:.0f}",
            f"{one['peak_memory_mb']:.0f}",
        )
    long = results["long"]
    table.add_row(
        f"import, {long['batches']} batches",
        f"{long['core_seconds']['median_s']:.2f}",
        "",
        f"{long['mb_per_core_s']:.0f} ({long['further_mb_per_core_s']:.0f} for each further MB)",
        f"{long['peak_memory_mb']:.0f}",
    )
    Console().print(table)


def main() -> None:
    """Parse, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--labels", type=Path, default=REAL_LABELS, help="pool of real logits")
    add_images_option(parser)
    parser.add_argument("--quick", action="store_true", help="a few batches, one run")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parsed(parser)
    if arguments.child:
        kind, *rest = arguments.child
        paths = [Path(word) for word in rest]
        if kind == "load":
            result = load_once(paths[0])
        elif kind == "bare":
            result = bare_work(paths[0], paths[1])
        else:
            result = import_once(paths[0], paths[1], paths[2], int(rest[3]))
        print(json.dumps(result))
        return
    size = {"batches": 6, "images": 256, "runs": 1, "times": 2}
    if not arguments.quick:
        size = {"batches": 585, "images": 10_000, "runs": 7, "times": 4}
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder), arguments.labels, **size, photos_from=arguments.images)
    show(results)
    if arguments.json:
        command = "python -m benchmarks.speed.importing" + (" --quick" if arguments.quick else "")
        write_json(arguments.json, benchmark="import_speed", command=command, results=results)


if __name__ == "__main__":
    main()
