"""Accuracy against the bytes of labels and images: methods in f16, codecs, and baselines."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.cells import BASELINES, SHIPPED

COLOURS = {"lpld": "#08519c", "sre2l": "#636363", "real": "#238b45"}
STYLES = {
    "klt": ("*", "#cb181d"),
    "topk": ("^", "#756bb1"),
    "pq": ("v", "#8c6d31"),
    "sampled": ("P", "#e6550d"),
    "teacher": ("D", "#252525"),
}
"""Marker and colour by the beginning of a codec's name."""


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
            markerfacecolor="white" if line == "--" else colour,
            capsize=3,
        )
    scale = results["scale"]
    title = f"{scale['dataset']}, IPC {scale['ipc']}, {scale['size']} px: accuracy against bytes"
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("labels and images on disk, MB (log scale)")
    bits = 8e6 / (100 if scale["dataset"] == "tiny100" else 10)
    top = axes.secondary_xaxis("top", functions=(partial(np.multiply, bits), partial(np.multiply, 1 / bits)))
    top.set_xlabel("bits per class")
    axes.set_ylabel("top-1 of the student, %")
    axes.set_title(title, pad=12)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _series(results: dict[str, Any]) -> dict[str, tuple[list[dict[str, Any]], str, str, str]]:
    """Return points by name with marker, colour and line. Of codecs, only those chosen at each budget."""
    decided, images = results["decisions"], results["image_bytes"]
    plain = [
        {**cell, "bytes": cell["bytes"] + images[cell["method"]]}
        for cell in results["cells"]
        if cell["method"] in images and _is_plain(cell, decided)
    ]
    found = {}
    for method, colour in COLOURS.items():
        here = [cell for cell in plain if cell["method"] == method]
        constant = [cell for cell in here if not _is_varied(cell)]
        cells = [cell for cell in constant if cell["codec"] == "f16"]
        found[f"{method}, f16"] = (_points(cells), "o", colour, "-")
        # Codecs chosen on seed 0 are shown on the other seeds.
        lossy = [cell for cell in constant if cell["seed"] and _is_chosen(cell, decided)]
        for kind, (marker, own) in STYLES.items():
            cells = [cell for cell in lossy if cell["codec"].startswith(kind)]
            found[f"{method}, {kind}"] = (_points(cells), marker, own if method == "lpld" else colour, ":")
        varied = [cell for cell in here if cell["phases"] and cell["temperature_schedule"]]
        for codec, marker, own in (("f16", "o", colour), ("klt", *STYLES["klt"])):
            cells = [cell for cell in varied if cell["codec"] == codec and cell["seed"]]
            found[f"{method}, {codec}, soft-hard-soft, falling T"] = (_points(cells), marker, own, "--")
    return {name: series for name, series in found.items() if series[0]}


def _points(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one point per ratio and codec, over seeds: mean bytes, mean and deviation of accuracy."""
    found = []
    for ratio, codec in sorted({(-cell["ratio"], cell["codec"]) for cell in cells}):
        here = [cell for cell in cells if (-cell["ratio"], cell["codec"]) == (ratio, codec)]
        top1 = [cell["top1"] for cell in here]
        deviation = float(np.std(top1, ddof=1)) if len(top1) > 1 else 0.0
        size = float(np.mean([cell["bytes"] for cell in here]))
        found.append({"bytes": size, "mean": float(np.mean(top1)), "std": deviation})
    return sorted(found, key=lambda point: point["bytes"])


def _is_plain(cell: dict[str, Any], decided: dict[str, Any]) -> bool:
    """Whether a cell is of the main setting, pruned at random and drawn from all batches."""
    other = ("ipc", "prefer", "drop_easy", "drop_hard", "student", "policy", "mix", "student_temperature")
    settled = cell["iterations"] in (None, decided["iterations"]) and cell["teacher"] == decided["teacher"]
    drawn = cell["pool"] == "batches" or cell["codec"] in SHIPPED
    return settled and drawn and not any(cell[name] for name in other)


def _is_varied(cell: dict[str, Any]) -> bool:
    return bool(cell["phases"] or cell["temperature_schedule"])


def _is_chosen(cell: dict[str, Any], decided: dict[str, Any]) -> bool:
    budget = f"f16 at {cell['ratio']:g}x"
    if cell["codec"] == "klt":
        # Group real has the fidelity of the first budget at all ratios.
        chosen = decided["klt_fidelity"]
        first = next(iter(chosen.values()), None)
        return bool(cell["fidelity"] == (chosen.get(budget, first) if cell["method"] == "lpld" else first))
    if cell["codec"].startswith("topk"):
        return bool(cell["codec"] == decided["topk"].get(budget))
    return cell["codec"] in SHIPPED or cell["codec"].startswith(BASELINES)
