"""The paper's claims about pruned labels and our own about codecs, with what finished cells say of each.

A difference counts when it is larger than two standard errors, taken from the spread between seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.plan import METRICS, PREFERENCES

PRUNED = (10, 20, 40)
LITTLE = 0.03
"""What 10x costs the paper's own method at IPC 10 of ImageNet-1K: 35.7 to 32.7 %."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """All seeds of one setting. top1: one per seed. bytes, rows, steps: of the last seed's pool and run."""

    cell: Cell
    top1: tuple[float, ...]
    bytes: int
    rows: int
    steps: int

    @property
    def mean(self) -> float:
        return float(np.mean(self.top1))

    @property
    def std(self) -> float:
        return float(np.std(self.top1, ddof=1)) if len(self.top1) > 1 else 0.0


Rows = dict[str, Row]
"""By `Cell.row.key`."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim and its test: difference of mean top-1 (positive speaks for the claim), twice its error."""

    claim: str
    verdict: str
    difference: float
    two_errors: float
    detail: str


def claims(rows: Rows, noise: float) -> list[Claim]:
    """Return the verdict on every claim that there are cells for. noise: deviation of one student."""
    return [
        *_class_wise(rows, noise),
        *_ilp(rows, noise),
        *_random(rows, noise),
        *_little(rows, noise),
        *_codecs(rows, noise),
    ]


def _class_wise(rows: Rows, noise: float) -> Iterator[Claim]:
    for pool, name in (("batches", "with ILP"), ("epochs", "whole epochs")):
        pairs = _pairs(
            rows,
            {ratio: Cell(method="lpld", ratio=ratio, pool=pool) for ratio in PRUNED},
            {ratio: Cell(method="sre2l", ratio=ratio, pool=pool) for ratio in PRUNED},
        )
        yield from _compared(f"class-wise beats cross-class under pruning ({name})", pairs, noise)


def _ilp(rows: Rows, noise: float) -> Iterator[Claim]:
    for method in ("lpld", "sre2l", "rded"):
        pairs = _pairs(
            rows,
            {ratio: Cell(method=method, ratio=ratio, pool="batches") for ratio in PRUNED},
            {ratio: Cell(method=method, ratio=ratio, pool="epochs") for ratio in PRUNED},
        )
        yield from _compared(f"ILP beats whole epochs ({method})", pairs, noise)


def _random(rows: Rows, noise: float) -> Iterator[Claim]:
    random = rows.get(Cell(method="lpld", ratio=40).key)
    found = {
        f"{metric} {prefer}": row
        for metric in METRICS
        for prefer in PREFERENCES
        if (row := rows.get(Cell(method="lpld", ratio=40, by=metric, prefer=prefer).key)) is not None
    }
    if random is None or not found:
        return
    mean = float(np.mean([row.mean for row in found.values()]))
    error = noise * math.sqrt(1 / len(random.top1) + 1 / sum(len(row.top1) for row in found.values()))
    best = max(found, key=lambda name: found[name].mean)
    difference = random.mean - mean
    yield Claim(
        claim="random pruning is no worse than metrics (40x)",
        verdict="holds" if difference > -2 * error else "does not hold",
        difference=difference,
        two_errors=2 * error,
        detail=f"random {random.mean:.1%}, mean of {len(found)} metrics {mean:.1%}, "
        f"best {best} {found[best].mean:.1%}",
    )


def _little(rows: Rows, noise: float) -> Iterator[Claim]:
    cells = [Cell(method=method, ratio=1) for method in ("lpld", "sre2l", "cda", "rded")]
    cells += [row.cell for row in rows.values() if row.cell.ipc and row.cell.ratio == 1]
    for cell in cells:
        full = rows.get(cell.key)
        pruned = rows.get(Cell(method=cell.method, ratio=10, ipc=cell.ipc).key)
        if full is None or pruned is None:
            continue
        cost = full.mean - pruned.mean
        error = noise * math.sqrt(1 / len(full.top1) + 1 / len(pruned.top1))
        name = cell.method + (f", IPC {cell.ipc}" if cell.ipc else "")
        yield Claim(
            claim=f"10x costs little: at most {100 * LITTLE:.0f} points ({name})",
            verdict=verdict(LITTLE - cost, error),
            difference=LITTLE - cost,
            two_errors=2 * error,
            detail=f"{full.mean:.1%} to {pruned.mean:.1%}, cost {100 * cost:.1f} points",
        )


def _codecs(rows: Rows, noise: float) -> Iterator[Claim]:
    """Our own claim: bytes are better spent on more labels in klt than on fewer in f16, or on top-k."""
    klt = {ratio: Cell(method="lpld", ratio=ratio, codec="klt") for ratio in PRUNED}
    for codec in ("f16", "topk:3", "topk:5"):
        other = {ratio: Cell(method="lpld", ratio=ratio, codec=codec) for ratio in PRUNED}
        yield from _compared(f"klt beats {codec} at equal bytes (ours)", _pairs(rows, klt, other), noise)


def _pairs(rows: Rows, better: Mapping[int, Cell], worse: Mapping[int, Cell]) -> list[tuple[int, Row, Row]]:
    """Return (ratio, row, row) where both were trained."""
    return [
        (ratio, rows[better[ratio].key], rows[worse[ratio].key])
        for ratio in better
        if better[ratio].key in rows and worse[ratio].key in rows
    ]


def _compared(name: str, pairs: Sequence[tuple[int, Row, Row]], noise: float) -> Iterator[Claim]:
    """Yield the claim that the first of each pair is better, on average over the ratios."""
    if not pairs:
        return
    difference = float(np.mean([first.mean - second.mean for _, first, second in pairs]))
    variance = sum(noise**2 * (1 / len(a.top1) + 1 / len(b.top1)) for _, a, b in pairs)
    error = math.sqrt(variance) / len(pairs)
    parts = [f"{ratio}x {100 * first.mean:.1f} / {100 * second.mean:.1f}" for ratio, first, second in pairs]
    yield Claim(
        claim=name,
        verdict=verdict(difference, error),
        difference=difference,
        two_errors=2 * error,
        detail=", ".join(parts),
    )


def verdict(difference: float, error: float) -> str:
    """Return what a difference with its standard error says of a claim it should be positive for."""
    if difference > 2 * error:
        return "holds"
    return "does not hold" if difference < -2 * error else "undecided"
