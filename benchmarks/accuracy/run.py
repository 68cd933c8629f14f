"""Filling the results cell by cell: a JSON line per finished student, processes side by side, resumable.

Only the parent writes, one line at a time, so that ending it at any moment costs the cells in hand
and no others. A last line that was cut short is dropped when the file is opened again.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from benchmarks.accuracy.cells import Cell, Scale


@dataclass(frozen=True, kw_only=True)
class Record:
    """A finished cell. preparing, batches, commit: 0 and "" in old records."""

    scale: dict[str, Any]
    cell: Cell
    top1: float
    top5: float
    bytes: int
    rows: int
    steps: int
    seconds: float
    preparing: float = 0.0
    batches: int = 0
    commit: str = ""

    def line(self) -> str:
        """Return the record as a line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @staticmethod
    def parse(line: str) -> Record:
        """Return the record of a line."""
        fields = json.loads(line)
        return Record(**{**fields, "cell": Cell(**fields["cell"])})


def read_records(path: Path, scale: Scale) -> list[Record]:
    """Return the finished cells of one scale; others in the file are passed over."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    records = [Record.parse(line) for line in lines if line.endswith("\n")]
    return [record for record in records if Scale.parse(record.scale) == scale]


def run_cells(
    path: Path,
    scale: Scale,
    cells: Sequence[Cell],
    *,
    work: Path,
    data: Path | None = None,
    workers: int = 1,
) -> list[Record]:
    """Train the cells that are not in the file yet and return all of the scale's records.

    workers: processes of one thread each.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock", timeout=0):
        _drop_torn_line(path)
        done = {record.cell.key for record in read_records(path, scale)}
        missing = [cell for cell in cells if cell.key not in done]
        _say(f"{len(cells) - len(missing)} of {len(cells)} cells are done")
        with path.open("a") as stream:
            for number, (cell, came) in enumerate(_finished(scale, missing, work, data, workers), 1):
                if isinstance(came, BaseException):
                    _say(f"{number}/{len(missing)} {cell} failed: {came!r}")
                    continue
                stream.write(came.line())
                stream.flush()
                _say(f"{number}/{len(missing)} {cell}: {came.top1:.1%} in {came.seconds:.0f} s")
    return read_records(path, scale)


def _finished(
    scale: Scale, cells: Sequence[Cell], work: Path, data: Path | None, workers: int
) -> Iterator[tuple[Cell, Record | BaseException]]:
    """Yield what came of each cell as it ends; only as many are begun as there are processes.

    A cell that fails does not stop a night's work; it is tried again by the next run.
    """
    waiting = list(reversed(cells))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_one_thread) as processes:
        running: dict[Future[Record], Cell] = {}
        while True:
            while waiting and len(running) < workers:
                cell = waiting.pop()
                running[processes.submit(_train, scale, cell, work, data)] = cell
            if not running:
                return
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                yield running.pop(future), future.exception() or future.result()


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _train(scale: Scale, cell: Cell, work: Path, data: Path | None) -> Record:
    """Run in a process of its own."""
    from benchmarks.accuracy.cell import forget_student, train_cell
    from benchmarks.accuracy.work import Workshop
    from benchmarks.common.harness import commit

    workshop = Workshop.open(work, scale, data)
    result = train_cell(workshop, cell)
    forget_student(workshop, cell)
    return Record(scale=scale.as_json(), cell=cell, commit=commit(), **asdict(result))


def _drop_torn_line(path: Path) -> None:
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        whole, _, _ = path.read_text().rpartition("\n")
        path.write_text(whole + "\n" if whole else "")


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
