"""Where a pool comes from: its steps as a picture."""

from __future__ import annotations

import json

from lpld_labels.format.manifest import LineageStep
from lpld_labels.inspect.pages.flow import Step
from lpld_labels.inspect.pages.markup import shortened
from lpld_labels.inspect.summary import PoolSummary

_PARAMETERS_SHOWN = 6


def lineage_steps(summary: PoolSummary) -> list[Step]:
    """Return the boxes: what was there first, the pool after each step, this pool last."""
    first = Step(name="images", lines=[f"{summary.images:,} images of {summary.classes:,} classes"])
    steps = [first]
    for number, step in enumerate(summary.lineage):
        known = {name: value for name, value in step.parameters.items() if value not in (None, [], {})}
        lines = [f"{name}: {_value(value)}" for name, value in list(known.items())[:_PARAMETERS_SHOWN]]
        last = number == len(summary.lineage) - 1
        digest = summary.content_digest if last else summary.lineage[number + 1].parent_digest
        name = "this pool" if last else "a pool"
        steps.append(Step(name=f"{name} {(digest or '')[:12]}", lines=lines, arrow=step.operation))
    if not summary.lineage:
        steps.append(
            Step(name=f"this pool {summary.content_digest[:12]}", lines=["no step recorded"], arrow="unknown")
        )
    return steps


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"
    return shortened(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def parents(lineage: tuple[LineageStep, ...]) -> list[str]:
    """Return the content digests of the pools a pool came from, oldest first."""
    return [step.parent_digest for step in lineage if step.parent_digest is not None]
