"""The results' appendix on accuracy at 20 classes: the main table, verdicts on claims, all other tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.accuracy.plan import GROUPS
from benchmarks.accuracy.report import variant_name
from benchmarks.readme.parts import Results, table

TITLES = {
    "metrics": "Pruning by metrics",
    "codecs": "Codecs at equal bytes: more labels, but coarser ones, in the bytes of f16 at this ratio",
    "methods": "Other images",
    "ablation": "Ablation: lpld-global has class batches with global statistics",
    "large": "More images per class",
    "ensemble": "Two teachers, MSE + 0.1 x ground truth",
    "architectures": "Other students",
    "calibration": "Calibration: easy and hard batches left out before pruning at random",
}


def accuracy(results: Results) -> Iterable[str]:
    """Yield the main table with three seeds, the claims, and all other tables folded away."""
    main, rest = results["accuracy_main"], results["accuracy"]
    yield "## Appendix: accuracy under pruning, 20 classes"
    yield ""
    yield _setting(main)
    yield ""
    yield from _main_table(main)
    yield ""
    yield f"{results.source('accuracy_main')}"
    yield ""
    yield "![Accuracy against label bytes](../benchmarks/results/accuracy.png)"
    yield ""
    yield "The paper's claims and ours at this scale (difference in points, positive speaks for the claim):"
    yield ""
    yield from claim_lines(main["claims"])
    yield ""
    yield (
        f"The other tables are of {rest['scale']['epochs']} epochs, and of one student a row where no spread "
        f"is given: {rest['students']} students, {rest['training_seconds']['sum'] / 60:.0f} minutes of "
        "training in all. What they say of further claims:"
    )
    yield ""
    answered = {claim["claim"] for claim in main["claims"]}
    yield from claim_lines([claim for claim in rest["claims"] if claim["claim"] not in answered])
    yield ""
    yield "<details markdown><summary>All other tables, top-1 in %</summary>"
    for group in GROUPS:
        yield ""
        yield from _group(rest, group)
    yield ""
    yield "</details>"
    yield ""
    yield f"{results.source('accuracy')}"


def _setting(found: dict[str, Any]) -> str:
    scale = found["scale"]
    return (
        f"20 classes of Tiny-ImageNet at {scale['size']} px, {scale['ipc']} images per class, "
        f"{scale['epochs']} epochs of labels, a teacher of {100 * found['teacher']['top1']:.1f} %; top-1 of "
        f"{found['students']} students, {found['training_seconds']['sum'] / 60:.0f} minutes of training in "
        "all on one thread each. One student's standard deviation is "
        f"{100 * found['noise_of_one_student']:.1f} points; a row without a spread is one student."
    )


def _main_table(found: dict[str, Any]) -> Iterable[str]:
    cells = {(row["method"], row["codec"], row["pool"], row["ratio"]): row for row in found["rows"]}
    body = []
    for method in ("lpld", "sre2l"):
        for pool, name in (("batches", "drawn from all (ILP)"), ("epochs", "whole epochs")):
            values = [cells[method, "f16", pool, ratio] for ratio in (1, 10, 20, 40)]
            body.append([method, f"{name}, f16", *map(entry, values)])
    for codec in ("klt", "topk:5"):
        values = [cells["lpld", codec, "batches", ratio] for ratio in (10, 20, 40)]
        body.append(["lpld", f"ILP, {codec}: more labels in the same bytes", "", *map(entry, values)])
    yield from table(("images", "label batches", "1x", "10x", "20x", "40x"), body)


def claim_lines(claims: Iterable[dict[str, Any]]) -> Iterable[str]:
    """Yield a line per claim with its verdict."""
    for claim in claims:
        yield (
            f"- {claim['claim']}: **{claim['verdict']}**, {100 * claim['difference']:+.1f} "
            f"(two standard errors: {100 * claim['two_errors']:.1f}); {claim['detail']}"
        )


def _group(found: dict[str, Any], group: str) -> Iterable[str]:
    """Yield one table: a line per variant, a column per ratio."""
    rows = [row for row in found["rows"] if group in row["groups"]]
    ratios = sorted({row["ratio"] for row in rows})
    variants: dict[str, dict[float, str]] = {}
    for row in rows:
        variants.setdefault(variant_name(row), {})[row["ratio"]] = entry(row)
    title = TITLES.get(group, f"The main table after {found['scale']['epochs']} epochs")
    body = [
        [name, *(entries.get(ratio, "") for ratio in ratios)] for name, entries in sorted(variants.items())
    ]
    yield from table((title, *(f"{ratio:g}x" for ratio in ratios)), body)


def entry(row: dict[str, Any]) -> str:
    """Return mean and spread of a row in percent."""
    spread = "" if row["std"] is None else f" +/- {100 * row['std']:.1f}"
    return f"{100 * row['mean']:.1f}{spread}"
