"""Races: `python -m tests.trust.races [ROUNDS]`: writers, readers and prunings of one pool at the same time.

Whoever ends, ends well or with a LabelPoolError. Afterwards the pool is whole, nothing that a command said it
had written is missing, and whoever was refused gets its way by running again, alone.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from lpld_labels import BatchKey, LabelBatch, LabelPoolError, PoolReader
from lpld_labels.inspect.check import check_pool
from tests.factories import grow_pool, make_batches, make_header, make_images, write_pool
from tests.trust.children import Ending, at_once, watched
from tests.trust.figures import Tally, finish, parser, workplace
from tests.trust.kills.commands import run_cli

CLASSES, ROWS = 10, 8
SECONDS = 60.0
BATCHES = make_batches(4, 6, rows=ROWS, classes=CLASSES)


def add(pool: Path, batches: list[LabelBatch], *, pause: float = 0.0) -> None:
    """Add batches to a pool, each in a shard of its own."""
    grow_pool(pool, batches, progress=lambda done, total: time.sleep(pause))


def read_often(pool: Path, times: int) -> str | None:
    """Open a pool and read all of it, again and again; it may grow, but never shrink or change."""
    known = {batch.key: batch for batch in BATCHES}
    count = 0
    for _ in range(times):
        try:
            with PoolReader(pool) as reader:
                if len(reader) < count:
                    return f"{len(reader)} batches after {count}"
                count = len(reader)
                for batch in reader:
                    if not (batch.labels == known[batch.key].labels).all():
                        return f"other labels in {batch.key}"
        except LabelPoolError:
            # Files of the pool that was opened may go while it is read; opened anew, it must be there.
            with PoolReader(pool) as reader:
                len(reader)
    return None


def writers(folder: Path, draw: random.Random, count: int) -> Iterator[tuple[str, Ending]]:
    """Let several writers add to one pool, some of the same batches among theirs."""
    pool = folder / "pool"
    start(pool, 4)
    parts = [draw.sample(BATCHES[4:], 6) for _ in range(count)]
    works = [
        partial(add, pool, sorted(part, key=lambda b: b.key), pause=draw.random() / 50) for part in parts
    ]
    found = at_once(works, seconds=SECONDS)
    yield from ((f"writer of {count}", ending) for ending in found)
    done = [batch.key for part, end in zip(parts, found, strict=True) if end.kind == "well" for batch in part]
    lost = sorted(set(done) - _keys(pool))
    yield "after writers", _judged(pool, f"lost {lost}" if lost else None)
    for work in works:
        yield "writer again", watched(work, megabytes=1000, seconds=SECONDS)
    everything = {batch.key for part in parts for batch in part} | {batch.key for batch in BATCHES[:4]}
    yield "all there", _judged(pool, None if _keys(pool) == everything else "batches are missing")


def reader_and_writer(folder: Path, draw: random.Random) -> Iterator[tuple[str, Ending]]:
    """Read a pool while it is committed to, several times."""
    pool = folder / "pool"
    start(pool, 4)

    def grow() -> None:
        for number in range(4, 16, 2):
            add(pool, BATCHES[number : number + 2], pause=draw.random() / 100)

    works: list[Callable[[], object]] = [grow, partial(read_often, pool, 30), partial(read_often, pool, 30)]
    yield from (("reader or writer", ending) for ending in at_once(works, seconds=SECONDS))
    yield "after reading", _judged(pool, None if len(_keys(pool)) == 16 else "batches are missing")


def prune_while_growing(folder: Path, draw: random.Random) -> Iterator[tuple[str, Ending]]:
    """Prune a pool that grows."""
    pool, out = folder / "pool", folder / "out"
    start(pool, 8)
    works: list[Callable[[], object]] = [
        partial(add, pool, BATCHES[8:16], pause=draw.random() / 50),
        partial(run_cli, "prune", pool, out, "--ratio", 2),
    ]
    yield from (("pruning or growing", ending) for ending in at_once(works, seconds=SECONDS))
    yield "after growing", _judged(pool, None if len(_keys(pool)) == 16 else "batches are missing")
    if (out / "pool.json").exists():
        yield "pruned", _judged(out, None if _keys(out) <= _keys(pool) else "batches from nowhere")


def start(pool: Path, count: int) -> None:
    """Write a pool of the first batches."""
    images = make_images(classes=CLASSES)
    write_pool(pool, BATCHES[:count], header=make_header(CLASSES, ROWS), images=images).close()


def _keys(pool: Path) -> set[BatchKey]:
    with PoolReader(pool) as reader:
        return set(reader.keys)


def _judged(pool: Path, problem: str | None) -> Ending:
    """Return whether a pool is whole and has no other problem."""
    report = check_pool(pool)
    problem = problem or (None if report.whole else str(report.problems[0]))
    kind = "well" if problem is None else "wrong"
    return Ending(kind=kind, said=problem or "")


def main() -> int:
    """Run the races and say what came of them."""
    options = parser("Races for one pool.", cases=200).parse_args()
    tally = Tally()
    ways: list[Callable[[Path, random.Random], Iterator[tuple[str, Ending]]]] = [
        partial(writers, count=2),
        partial(writers, count=3),
        reader_and_writer,
        prune_while_growing,
    ]
    for number in range(options.cases):
        draw = random.Random(f"{options.seed} {number}")
        with workplace() as folder:
            for name, ending in ways[number % len(ways)](folder, draw):
                tally.add(f"round {number}, {name}", ending)
    facts = {"rounds": options.cases, **tally.facts()}
    return finish("races", options, facts, tally.findings)


if __name__ == "__main__":
    sys.exit(main())
