"""The tables of tiny20: a group of cells is one of the paper's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.accuracy.cells import Cell, Scale
from lpld_labels.settings import setting_fields
from lpld_labels.transforms.settings import PruneSettings

METRICS = setting_fields(PruneSettings)["by"].choices[1:]
PREFERENCES = setting_fields(PruneSettings)["prefer"].choices
POOLS = ("epochs", "batches")
"""Without and with the improved label pool (ILP)."""
CALIBRATION = ((0.0, 0.9), (0.0, 0.5), (0.1, 0.3), (0.3, 0.05), (0.9, 0.0))
"""Shares of (easy, hard) batches that the paper leaves out before it prunes."""
DEFAULT_SEEDS = 3


def main_cells(scale: Scale) -> Iterator[Cell]:
    """Yield the main table: class-wise against cross-class, with and without ILP."""
    del scale
    for ratio in (10, 20, 40, 1):
        for pool in reversed(POOLS):
            for method in ("lpld", "sre2l"):
                yield Cell(method=method, ratio=ratio, pool=pool)


def metric_cells(scale: Scale) -> Iterator[Cell]:
    """Yield the five metrics x three preferences at 40x; random is in the main table."""
    del scale
    for prefer in PREFERENCES:
        for metric in METRICS:
            yield Cell(method="lpld", ratio=40, by=metric, prefer=prefer)


def calibration_cells(scale: Scale) -> Iterator[Cell]:
    """Yield random pruning of calibrated pools."""
    del scale
    for ratio in (20, 30, 50, 100):
        for easy, hard in (*CALIBRATION, (0.0, 0.0)):
            yield Cell(method="lpld", ratio=ratio, drop_easy=easy, drop_hard=hard)


def ablation_cells(scale: Scale) -> Iterator[Cell]:
    """Yield the ablation's five rows: none, +C, +C+ILP, +C+CS, +C+CS+ILP."""
    del scale
    rows = (
        ("lpld-global", "epochs"),
        ("lpld-global", "batches"),
        ("sre2l", "epochs"),
        ("lpld", "epochs"),
        ("lpld", "batches"),
    )
    for ratio in (10, 20, 40, 1, 30, 50, 100):
        for method, pool in rows:
            yield Cell(method=method, ratio=ratio, pool=pool)


def method_cells(scale: Scale) -> Iterator[Cell]:
    """Yield other ways to make images: cda, and rded with and without ILP."""
    del scale
    for ratio in (1, 10, 20, 40, 30):
        for method, pool in (("rded", "batches"), ("cda", "batches"), ("rded", "epochs"), ("cda", "epochs")):
            yield Cell(method=method, ratio=ratio, pool=pool)


def codec_cells(scale: Scale) -> Iterator[Cell]:
    """Yield codecs at equal bytes: what pruned f16 labels take, filled with more but coarser ones."""
    del scale
    for ratio in (40, 20, 10):
        for codec in ("klt", "topk:3", "topk:5"):
            yield Cell(method="lpld", ratio=ratio, codec=codec)


def ensemble_cells(scale: Scale) -> Iterator[Cell]:
    """Yield the paper's Ours+: labels by two teachers, loss MSE + 0.1 x ground truth."""
    del scale
    for ratio in (10, 40, 1, 20, 30):
        yield Cell(method="lpld", ratio=ratio, labels="ensemble", loss="mse+gt")


def architecture_cells(scale: Scale) -> Iterator[Cell]:
    """Yield students that are not the teacher's network."""
    for ratio in (10, 1, 30):
        for student in scale.other_students:
            yield Cell(method="lpld", ratio=ratio, student=student)


def large_cells(scale: Scale) -> Iterator[Cell]:
    """Yield more images per class: does "10x costs little" return? rded needs no optimisation."""
    for method in ("rded", "lpld"):
        for ratio in (1, 10):
            yield Cell(method=method, ratio=ratio, ipc=scale.large_ipc)


GROUPS: Mapping[str, Callable[[Scale], Iterator[Cell]]] = {
    "main": main_cells,
    "metrics": metric_cells,
    "codecs": codec_cells,
    "methods": method_cells,
    "ablation": ablation_cells,
    "large": large_cells,
    "ensemble": ensemble_cells,
    "architectures": architecture_cells,
    "calibration": calibration_cells,
}
"""Tables by name, most informative first."""


def quick_cells(scale: Scale) -> list[Cell]:
    """Return one cell of every kind, for a run that shows that all of them work."""
    return [
        Cell(method="lpld", ratio=1, pool="epochs"),
        Cell(method="lpld", ratio=10),
        Cell(method="sre2l", ratio=10),
        Cell(method="rded", ratio=10, pool="epochs", student=scale.other_students[0]),
        Cell(method="lpld", ratio=10, by="confidence", prefer="easy"),
        Cell(method="lpld", ratio=2, codec="klt"),
        Cell(method="lpld", ratio=10, labels="ensemble", loss="mse+gt"),
    ]


def planned(scale: Scale, groups: Sequence[str], *, seeds: int = DEFAULT_SEEDS) -> list[Cell]:
    """Return the cells of some groups in the order to train them: all seeds of the main table, one of others.

    Tables share cells; each is trained once.
    """
    found: dict[str, Cell] = {}
    for name in groups:
        for seed in range(seeds if name == "main" else 1):
            for cell in GROUPS[name](scale):
                chosen = replace(cell, seed=seed)
                found.setdefault(chosen.key, chosen)
    return list(found.values())
