"""The law as a picture: share of accuracy lost against distinct views of a class, with what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

MARKERS = {
    "ImageNet-1K": ("o", "#08519c"),
    "Tiny-ImageNet": ("s", "#31a354"),
    "tiny100": ("D", "#e6550d"),
    "tiny20": ("^", "#756bb1"),
}


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the rows, the law and its spread on unseen data."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    rows = [*results["rows"], *results["outside"]]
    for data, (marker, colour) in MARKERS.items():
        here = [row for row in rows if row["data"] == data]
        if not here:
            continue
        source = "paper" if here[0]["source"] == "paper" else "measured here"
        outside = here[0]["classes"] < results["fewest_classes"]
        axes.scatter(
            [_rate(results, row["views_before"], row["views_before"] / row["views"]) for row in here],
            [100 * row["loss"] for row in here],
            marker=marker,
            edgecolors=colour,
            facecolors="none" if outside else colour,
            label=f"{data}, {here[0]['classes']} classes ({source}{'; outside the law' if outside else ''})",
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
    axes.set_xlabel(f"{constants}  (V: distinct views of a class before pruning, R: ratio; log scale)")
    axes.set_ylabel("top-1 lost, % of that with all labels (lower is better)")
    axes.set_title("What pruning costs follows from the views of a class and the ratio")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _rate(results: dict[str, Any], views: float, ratio: float) -> float:
    """Return the law's rate: about the share that is lost."""
    return float(
        results["scale"] * views ** -results["views_exponent"] * (ratio - 1) ** results["ratio_exponent"]
    )
