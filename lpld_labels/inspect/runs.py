"""Training runs: their logs, and curves of loss, learning rate and accuracy."""

from __future__ import annotations

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
    inside = [sorted(log.parent for log in directory.glob(f"*/{LOG_FILE}")) for directory in directories]
    found = [run for given, runs in zip(directories, inside, strict=True) for run in runs or [given]]
    runs = [_read_run(directory) for directory in found]
    names = [run.name for run in runs]
    return [
        run if names.count(run.name) == 1 else replace(run, name=f"{run.name} ({number})")
        for number, run in enumerate(runs, 1)
    ]


def run_warnings(runs: Sequence[Run], digest: str) -> list[str]:
    """Return what a report on the pool of this content digest warns of in runs."""
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
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InvalidArgumentError(
            f"not a training run: {error.strerror}", where=path, hint="give a directory that train wrote"
        ) from None
    points: list[tuple[int, dict[str, Any]]] = []
    steps = 0
    for number, line in enumerate(lines, 1):
        record = _record(line, f"{path}, line {number}")
        done = _number(record.get("steps"))
        steps += int(done) if done is not None else 1
        points.append((steps, record))
    tops = [value for _, record in points if (value := _number(record.get("top1"))) is not None]
    return Run(
        name=directory.resolve().name,
        pool=_pool_of(directory),
        points=tuple(points),
        top1=tops[-1] if tops else None,
    )


def _number(value: object) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if usable and math.isfinite(value) else None  # type: ignore[arg-type]


def _record(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InvalidArgumentError(f"not valid JSON: {error}", where=where) from None
    if not isinstance(record, dict):
        raise InvalidArgumentError("not a log record", where=where, expected="a JSON object")
    return record


def _pool_of(directory: Path) -> str | None:
    """Return the digest of the pool that a run's weights name, from the head of the file alone."""
    for name in WEIGHT_FILES:
        try:
            with (directory / name).open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                head = json.loads(stream.read(min(length, _LARGEST_HEADER)))
                about = json.loads(head["__metadata__"][ABOUT_KEY])
        except (OSError, struct.error, ValueError, KeyError, TypeError):
            continue
        found = about.get("pool") or about.get("settings", {}).get("pool")
        if isinstance(found, str):
            return found
    return None
