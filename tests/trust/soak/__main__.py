"""Soak: `python -m tests.trust.soak [BATCHES]`: label batches read at random by workers, beside a writer.

The writer adds batches to the pool one commit at a time, prunes it to the next one, goes on with that, and
deletes the one before. Workers read whatever is the newest pool, labels always from its files: what a cache
gives out cannot leak. Every so often each of them notes its memory, open files and threads; a line is fitted
to each, and none may rise by more than its noise. A pool's lineage names every pruning since the first pool,
so after some of them the writer begins with a new one: otherwise the pools themselves would grow.
"""

import gc
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lpld_labels import BatchKey, LabelPoolError, PoolReader
from lpld_labels.format.records import LabelArray
from lpld_labels.pool import reader
from tests.trust.figures import finish, parser, workplace
from tests.trust.kills.commands import run_cli
from tests.trust.races.__main__ import BATCHES, add, start

Note = tuple[int, float, int, int]
"""Reads or pools so far; megabytes, open files and threads in use."""
WORKERS = 4
FIRST_BATCHES = 12
REOPEN_EVERY = 250
"""Reads after which a worker looks for a newer pool."""
NOTE_EVERY = 2
"""Pools after which it notes what it uses."""
PRUNINGS = 8
"""Pools that follow from each other before the writer begins anew."""
DECODE_EVERY = 10
"""Of so many pools that are opened, one is read with no cache of views either."""
MOST_MEGABYTES = 0.5
"""By which memory may rise over all reads, where the line's own error allows no less."""
FEW_NOTES, MOST_MEGABYTES_OF_FEW = 100, 2.0
"""A run with few notes is short: what the allocator takes at the beginning is still in its line."""


def newest(folder: Path) -> Path:
    """Return the newest pool."""
    # One that is on its way has a dot in front.
    found = [path for path in folder.iterdir() if path.name.isdigit() and (path / "pool.json").exists()]
    return max(found, key=lambda path: int(path.name))


def read_at_random(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Be a worker: read batches and compare their labels."""
    known = {batch.key: batch.labels for batch in BATCHES}
    draw = np.random.default_rng(seed)
    notes: list[Note] = []
    wrong = stale = done = opened = 0
    reader.LABEL_CACHE_BYTES = 0
    while done < count:
        opened += 1
        views = 0 if opened % DECODE_EVERY == 0 else reader.VIEW_CACHE_BYTES
        try:
            for labels, key in some_labels(folder, draw, view_cache_bytes=views):
                wrong += not np.array_equal(labels, known[key])
                done += 1
        except (LabelPoolError, FileNotFoundError):
            # The pool was pruned away while it was read.
            stale += 1
        # With no pool at hand: how large one is, and how many files it has, is the writer's doing.
        if opened % NOTE_EVERY == 0:
            notes.append((done, *usage()))
    return {"wrong": wrong, "stale": stale, "notes": notes}


def some_labels(
    folder: Path, draw: np.random.Generator, *, view_cache_bytes: int
) -> Iterator[tuple[LabelArray, BatchKey]]:
    """Open the newest pool and yield labels of batches at random."""
    with PoolReader(newest(folder), view_cache_bytes=view_cache_bytes) as pool:
        keys = list(pool.keys)
        for _ in range(REOPEN_EVERY):
            key = keys[int(draw.integers(len(keys)))]
            yield pool.read(key).labels, key


def write_and_prune(folder: Path, stop: Any) -> dict[str, Any]:
    """Be the writer: extend a pool, prune it to the next one."""
    notes: list[Note] = []
    generation = 0
    while not stop.is_set():
        pool, unfinished = folder / str(generation), folder / f".{generation + 1}"
        with PoolReader(pool) as opened:
            there = set(opened.keys)
        for batch in [batch for batch in BATCHES if batch.key not in there][:6]:
            add(pool, [batch])
            time.sleep(0.05)
        if (generation + 1) % PRUNINGS:
            run_cli("prune", pool, unfinished, "--ratio", 2)
        else:
            start(unfinished, FIRST_BATCHES)
        unfinished.rename(folder / str(generation + 1))
        if generation:
            shutil.rmtree(folder / str(generation - 1))
        generation += 1
        notes.append((generation, *usage()))
    return {"generations": generation, "notes": notes}


def usage() -> tuple[float, int, int]:
    """Return megabytes of memory, open files, threads of this process."""
    # What waits for the collector is no leak, and how much waits is chance.
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = len(list(Path("/proc/self/fd").iterdir()))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, files, threading.active_count()


def rise(notes: list[Note], column: int) -> tuple[float, float]:
    """Return by how much a line rises over the later four fifths of the notes, and the error of that."""
    values = np.array([(note[0], note[column]) for note in notes[len(notes) // 5 :]], np.float64)
    x, y = values[:, 0] - values[:, 0].mean(), values[:, 1] - values[:, 1].mean()
    if len(x) < 3 or not x.any():
        return 0.0, 0.0
    slope = float((x * y).sum() / (x * x).sum())
    error = float(np.sqrt(((y - slope * x) ** 2).sum() / (len(x) - 2) / (x * x).sum()))
    length = float(np.ptp(values[:, 0]))
    return slope * length, error * length


def problems(who: str, notes: list[Note]) -> list[str]:
    """Return what grows."""
    found = []
    grown, error = rise(notes, 1)
    allowed = MOST_MEGABYTES if len(notes) > FEW_NOTES else MOST_MEGABYTES_OF_FEW
    if grown > max(allowed, 3 * error):
        found.append(f"memory of {who} rises by {grown:.2f} MB (error {error:.2f})")
    for column, name in ((2, "open files"), (3, "threads")):
        late = [note[column] for note in notes[len(notes) // 5 :]]
        if late and max(late[len(late) // 2 :]) > max(late[: len(late) // 2 + 1]):
            found.append(f"{name} of {who} rise to {max(late)}")
    return found


def main() -> int:
    """Run the soak and say what came of it."""
    options = parser("Read at random, beside a writer.", cases=1_000_000).parse_args()
    context = multiprocessing.get_context("fork")
    began = time.monotonic()
    share = options.cases // WORKERS
    with workplace() as folder:
        start(folder / "0", FIRST_BATCHES)
        stop = context.Event()
        works: list[Callable[[], dict[str, Any]]] = [
            partial(read_at_random, folder, share, options.seed + number) for number in range(WORKERS)
        ]
        works.append(partial(write_and_prune, folder, stop))
        jobs = []
        for work in works:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=lambda work, sender: sender.send(work()), args=(work, sender))
            process.start()
            sender.close()
            jobs.append((receiver, process))
        workers = [receiver.recv() for receiver, _ in jobs[:-1]]
        stop.set()
        writer = jobs[-1][0].recv()
        for _, process in jobs:
            process.join()
    notes = [note for worker in workers for note in worker["notes"]]
    findings = [f"{worker['wrong']} wrong labels" for worker in workers if worker["wrong"]]
    for number, worker in enumerate(workers):
        findings += problems(f"worker {number}", worker["notes"])
    findings += problems("the writer", writer["notes"])
    rises = [rise(process["notes"], 1) for process in (*workers, writer)]
    facts = {
        "cases": share * WORKERS,
        "findings": len(findings),
        "generations": writer["generations"],
        "stale": sum(worker["stale"] for worker in workers),
        "rise_megabytes": [round(grown, 3) for grown, _ in rises],
        "rise_error_megabytes": [round(error, 3) for _, error in rises],
        "megabytes": round(max(note[1] for note in notes), 1),
        "open_files": max(note[2] for note in notes),
        "threads": max(note[3] for note in notes),
        "seconds": round(time.monotonic() - began),
    }
    return finish("soak", options, facts, findings)


if __name__ == "__main__":
    sys.exit(main())
