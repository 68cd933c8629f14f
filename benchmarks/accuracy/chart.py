"""Accuracy against label bytes: lpld and sre2l in f16, and codecs in the bytes of f16, with error bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

COLOURS = {"lpld": "#08519c", "sre2l": "#636363"}
STYLES = {"klt": ("*", "#cb181d"), "topk": ("^", "#756bb1")}


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the cells of a results file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for name, (points, marker, colour, line) in _series(results).items():
        axes.errorbar(
            [row["bytes"] / 1e6 for row in points],
            [100 * row["mean"] for row in points],
            yerr=[100 * row["std"] for row in points],
            label=name,
            color=colour,
            linestyle=line,
            marker=marker,
            markersize=9 if marker == "*" else 5,
            capsize=3,
        )
    scale = results["scale"]
    title = f"{scale['dataset']}, IPC {scale['ipc']}, {scale['size']} px: accuracy against label bytes"
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("label pool on disk, MB (log scale)")
    axes.set_ylabel("top-1 of the student, %")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _series(results: dict[str, Any]) -> dict[str, tuple[list[dict[str, Any]], str, str, str]]:
    """Return points by name with marker, colour and line. Of codecs, only those chosen at each budget."""
    decided = results["decisions"]
    plain = [cell for cell in results["cells"] if _is_plain(cell, decided)]
    found = {}
    for method in ("lpld", "sre2l"):
        cells = [cell for cell in plain if cell["method"] == method and cell["codec"] == "f16"]
        found[f"{method}, f16"] = (_points(cells), "o", COLOURS[method], "-")
    # Codecs chosen on seed 0 are shown on the other seeds.
    lossy = [cell for cell in plain if cell["method"] == "lpld" and cell["codec"] != "f16" and cell["seed"]]
    for kind, (marker, colour) in STYLES.items():
        cells = [cell for cell in lossy if cell["codec"].startswith(kind) and _is_chosen(cell, decided)]
        found[f"lpld, {kind}: more labels, but coarser ones"] = (_points(cells), marker, colour, ":")
    return {name: series for name, series in found.items() if series[0]}


def _points(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one point per ratio, over seeds: mean bytes, mean and deviation of accuracy."""
    ratios = sorted({cell["ratio"] for cell in cells}, reverse=True)
    found = []
    for ratio in ratios:
        here = [cell for cell in cells if cell["ratio"] == ratio]
        top1 = [cell["top1"] for cell in here]
        deviation = float(np.std(top1, ddof=1)) if len(top1) > 1 else 0.0
        size = float(np.mean([cell["bytes"] for cell in here]))
        found.append({"bytes": size, "mean": float(np.mean(top1)), "std": deviation})
    return found


def _is_plain(cell: dict[str, Any], decided: dict[str, Any]) -> bool:
    """Whether a cell is of the main setting, pruned at random and drawn from all batches."""
    other = ("ipc", "prefer", "drop_easy", "drop_hard", "student", "policy", "mix")
    temperatures = ("temperature_schedule", "student_temperature")
    settled = cell["iterations"] in (None, decided["iterations"])
    return settled and cell["pool"] == "batches" and not any(cell[name] for name in (*other, *temperatures))


def _is_chosen(cell: dict[str, Any], decided: dict[str, Any]) -> bool:
    budget = f"f16 at {cell['ratio']:g}x"
    if cell["codec"] == "klt":
        return bool(cell["fidelity"] == decided["klt_fidelity"].get(budget))
    return bool(cell["codec"] == decided["topk"].get(budget))
