"""What pruning costs, in pictures: accuracy against distinct views, of a class and in all, and the law."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MARKERS = {
    "ImageNet-1K": ("o", "#08519c"),
    "Tiny-ImageNet": ("s", "#31a354"),
    "tiny100": ("D", "#e6550d"),
}


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the rows by their views, and beside them the law with its spread on unseen data."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (by_class, in_all, law) = plt.subplots(1, 3, figsize=(16, 5), layout="constrained")
    rows = results["rows"]
    _draw_accuracy(by_class, rows, lambda row, views: views)
    by_class.set_xlabel("distinct views of a class that are left (log scale)")
    by_class.set_ylabel("top-1, % (a line is one set of images, from 1x on the right to 40x)")
    by_class.set_title("Accuracy by the views of a class")
    _draw_accuracy(in_all, rows, lambda row, views: views * row["classes"])
    in_all.set_xlabel("distinct views of all classes that are left (log scale)")
    in_all.set_title("Accuracy by all views")
    _draw_law(law, results, rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_accuracy(
    axes: Any, rows: list[dict[str, Any]], place: Callable[[dict[str, Any], float], float]
) -> None:
    """Draw top-1 of every set of images, without pruning and with less and less."""
    for data, (marker, colour) in MARKERS.items():
        here = [row for row in rows if row["data"] == data]
        sets = sorted({(row["source"], row["ipc"]) for row in here})
        for number, (source, ipc) in enumerate(sets):
            own = [row for row in here if (row["source"], row["ipc"]) == (source, ipc)]
            points = {place(own[0], own[0]["views_before"]): own[0]["top1_before"]}
            points |= {place(row, row["views"]): row["top1"] for row in own}
            axes.plot(
                *zip(*sorted(points.items()), strict=True),
                marker=marker,
                color=colour,
                linewidth=1,
                label=data if number == 0 else None,
            )
    axes.set_xscale("log")
    axes.set_ylim(0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_law(axes: Any, results: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Draw the share lost against what the law makes of views and ratio."""
    for data, (marker, colour) in MARKERS.items():
        here = [row for row in rows if row["data"] == data]
        if not here:
            continue
        source = "paper" if here[0]["source"] == "paper" else "measured here"
        axes.scatter(
            [_rate(results, row["views_before"], row["views_before"] / row["views"]) for row in here],
            [100 * row["loss"] for row in here],
            marker=marker,
            color=colour,
            label=f"{data}, {here[0]['classes']} classes ({source})",
            zorder=3,
        )
    rates = np.geomspace(0.002, 2, 200)
    factor = float(np.exp(2 * results["log_error_on_unseen_data"]))
    axes.plot(rates, -100 * np.expm1(-rates), color="black", label="the law")
    axes.fill_between(
        rates,
        -100 * np.expm1(-rates / factor),
        -100 * np.expm1(-rates * factor),
        color="black",
        alpha=0.08,
        label="two standard errors on unseen data",
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(0.2, 110)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    constants = (
        f"{results['scale']:.2g} V^-{results['views_exponent']:.2g} (R - 1)^{results['ratio_exponent']:.3g}"
    )
    axes.set_xlabel(f"{constants}  (V: views of a class, R: ratio)")
    axes.set_ylabel("top-1 lost, % of that with all labels (lower is better)")
    axes.set_title("What is lost follows from views and ratio")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _rate(results: dict[str, Any], views: float, ratio: float) -> float:
    """Return the law's rate: about the share that is lost."""
    return float(
        results["scale"] * views ** -results["views_exponent"] * (ratio - 1) ** results["ratio_exponent"]
    )
