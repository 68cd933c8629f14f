"""The results' section on what a pruning costs, and from which ratio on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from benchmarks.readme.parts import Results, table

NAME = "pruning_law"
VIEWS = (3_000, 6_000, 15_000, 30_000, 60_000)
COSTS = (0.02, 0.05, 0.10, 0.25)


def law(results: Results) -> Iterable[str]:
    """Yield the law, the ratio at which a pool begins to lose, and the picture."""
    found = results[NAME]
    sources = sorted({f"{row['data']} ({_whose(row)})" for row in found["rows"]})
    classes = min(row["classes"] for row in found["rows"])
    factor = math.exp(2 * found["log_error_on_unseen_data"])
    yield (
        "A student loses the views that it no longer sees. A class with V distinct views that "
        f"keeps one in R loses the share 1 - exp(-{found['scale']:.2f} V^-{found['views_exponent']:.2f} "
        f"(R - 1)^{found['ratio_exponent']:.2f}) of its accuracy. {len(found['rows'])} prunings are "
        f"described by this: {', '.join(sources)}. On data left out of the fit, a loss lies within a factor "
        f"of {factor:.1f} of the expected one (two standard errors). All have {classes} classes or more. "
        "So small pools lose accuracy early, large pools late:"
    )
    yield ""
    body = [[f"{views:,}", *(_ratio(found, views, cost) for cost in COSTS)] for views in VIEWS]
    yield from table(("views of a class", *(f"{cost:.0%} lost at" for cost in COSTS)), body)
    yield ""
    yield f"![What pruning costs](../benchmarks/results/{NAME}.png)"
    yield ""
    yield results.source(NAME)


def _whose(row: dict[str, Any]) -> str:
    return "the paper's" if row["source"] == "paper" else "ours"


def _ratio(found: dict[str, Any], views: int, cost: float) -> str:
    """Return the ratio at which a class of so many views loses this share."""
    rate = -math.log1p(-cost) * views ** found["views_exponent"] / found["scale"]
    ratio = 1 + rate ** (1 / found["ratio_exponent"])
    most = max(row["ratio"] for row in found["rows"])
    return f"{ratio:.0f}x" if ratio <= most else f"more than {most:g}x"
