"""Logs of training runs, for reports on the pools that they learned from."""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.inspect.charts import Chart, Series, plot
from lpld_labels.inspect.text import shortened

LOG_FILE = "log.jsonl"
WEIGHT_FILES = ("student.safetensors", "checkpoint.safetensors")
ABOUT_KEY = "lpld-labels"
_LARGEST_HEADER = 50_000_000


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run's log.

    name: its directory's. pool: content digest of the pool it learned from, None where not recorded.
    points: (steps done, record) of each epoch. top1: last accuracy as a share, None where not measured.
    """

    name: str
    pool: str | None
    points: tuple[tuple[int, dict[str, Any]], ...]
    top1: float | None


def read_runs(directories: Sequence[Path]) -> list[Run]:
    """Read run directories of `lpld-labels train`, or directories of them; equal names get numbers."""
    runs = []
    for given in directories:
        inside = sorted(log.parent for log in given.glob(f"*/{LOG_FILE}"))
        runs += [_read_run(directory) for directory in inside or [given]]
    names = [run.name for run in runs]
    return [
        run if names.count(run.name) == 1 else replace(run, name=f"{run.name} ({number})")
        for number, run in enumerate(runs, 1)
    ]


def run_warnings(runs: Sequence[Run], digest: str) -> list[str]:
    """Return warnings about runs for a report on the pool with this content digest."""
    found = []
    for run in runs:
        lost = [record.get("epoch") for _, record in run.points if _number(record.get("loss")) is None]
        if lost:
            found.append(f"Run {shortened(run.name)}: the loss of epoch {lost[0]} is not a number.")
        if run.pool not in (None, digest):
            pool = shortened((run.pool or "")[:12])
            found.append(f"Run {shortened(run.name)} learned from another pool, {pool}.")
    return found


def run_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return the curves of all runs."""
    kinds = (
        ("loss", 1, "Loss", "Mean training loss of each epoch.", "loss"),
        ("learning_rate", 1, "Learning rate", "Learning rate at the end of each epoch.", "rate"),
        ("top1", 100, "Accuracy", "Top-1 on the validation images, where it was measured.", "top-1, %"),
    )
    return [
        plot(title, says, [_curve(run, field, unit) for run in runs], x="steps", y=name)
        for field, unit, title, says, name in kinds
        if runs
    ]


def _curve(run: Run, field: str, unit: float) -> Series:
    found = [(steps, _number(record.get(field))) for steps, record in run.points]
    return Series(name=run.name, points=[(float(x), unit * y) for x, y in found if y is not None])


def _read_run(directory: Path) -> Run:
    path = directory / LOG_FILE
    points: list[tuple[int, dict[str, Any]]] = []
    steps, top1 = 0, None
    try:
        for line in path.read_bytes().splitlines():
            record = json.loads(line)
            steps += int(_number(record.get("steps")) or 1)
            measured = _number(record.get("top1"))
            top1 = top1 if measured is None else measured
            points.append((steps, record))
    except OSError as error:
        raise InvalidArgumentError(
            f"not a training run: {error.strerror}", where=path, hint="give a directory that train wrote"
        ) from None
    except (ValueError, AttributeError) as error:
        where = f"{path}, line {len(points) + 1}"
        raise InvalidArgumentError(f"not a log record: {error}", where=where) from None
    return Run(name=directory.resolve().name, pool=_pool_of(directory), points=tuple(points), top1=top1)


def _number(value: object) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None  # type: ignore[arg-type]


def _pool_of(directory: Path) -> str | None:
    """Return the digest of the pool that a run's weights name; reads the header of the file only."""
    for name in WEIGHT_FILES:
        with (
            contextlib.suppress(OSError, struct.error, ValueError, LookupError, TypeError),
            (directory / name).open("rb") as stream,
        ):
            (length,) = struct.unpack("<Q", stream.read(8))
            head = json.loads(stream.read(min(length, _LARGEST_HEADER)))
            found = json.loads(head["__metadata__"][ABOUT_KEY])["settings"]["pool"]
            if isinstance(found, str):
                return found
    return None
