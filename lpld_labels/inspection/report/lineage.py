"""Where a pool comes from: its steps as a picture and as the commands that repeat them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from lpld_labels.format.manifest import LineageStep
from lpld_labels.inspection.pages.flow import Step
from lpld_labels.inspection.pages.markup import shortened
from lpld_labels.inspection.summary import PoolSummary

_PARAMETERS_SHOWN = 6
Words = list[str]


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


def commands(summary: PoolSummary) -> list[str]:
    """Return a command for each known step; capital words stand for paths, which pools do not keep."""
    lines = []
    for number, step in enumerate(summary.lineage):
        make = _COMMANDS.get(step.operation)
        if make is None:
            lines.append(f"# {shortened(step.operation)}: how to repeat this step is not known")
            continue
        source, target = f"POOL{number}", f"POOL{number + 1}"
        words = make(step.parameters, summary, source, target)
        lines.append(" ".join(["lpld-labels", step.operation, *(shlex.quote(word) for word in words)]))
    return lines


def _build(parameters: Mapping[str, Any], summary: PoolSummary, source: str, target: str) -> Words:
    del source
    words = ["IMAGES", target]
    for teacher in summary.teachers:
        words += ["--teacher", teacher.name]
    words += _options(parameters, {"epochs": "--epochs", "seed": "--seed"})
    words += ["--batch-size", str(summary.batch_size)]
    ratio = parameters.get("ratio")
    words += [] if ratio in (None, 1, 1.0) else ["--ratio", _value(ratio)]
    how = summary.augmentation
    words += ["--mix", how.mix, "--resize", how.resize]
    if how.crop_scale is not None:
        words += ["--crop-scale", *(f"{bound:g}" for bound in how.crop_scale)]
    words += ["--size", str(how.output_height), "--flip" if how.flip_probability else "--no-flip"]
    words += [] if how.cutout_fraction is None else ["--cutout", f"{how.cutout_fraction:g}"]
    return words + ([] if how.patch_grid is None else ["--patches", str(how.patch_grid)])


def _prune(parameters: Mapping[str, Any], summary: PoolSummary, source: str, target: str) -> Words:
    del summary
    words = [source, target]
    words += _options(
        parameters,
        {"ratio": "--ratio", "budget_bytes": "--budget", "level": "--level", "metric": "--by"},
    )
    words += _options(parameters, {"prefer": "--prefer", "drop_by": "--drop-by"})
    for name in ("drop_easy", "drop_hard"):
        if parameters.get(name):
            words += [f"--{name.replace('_', '-')}", _value(parameters[name])]
    words += ["--keep-partial"] if parameters.get("keep_partial") else []
    return words + _options(parameters, {"seed": "--seed"})


def _encode(parameters: Mapping[str, Any], summary: PoolSummary, source: str, target: str) -> Words:
    del summary
    words = [source, target, *_options(parameters, {"codec": "--codec"})]
    demand = parameters.get("target")
    for name, value in demand.items() if isinstance(demand, dict) else ():
        words += [f"--{str(name).replace('_', '-')}", _value(value)]
    return words


def _import(parameters: Mapping[str, Any], summary: PoolSummary, source: str, target: str) -> Words:
    del summary, source
    folder = parameters.get("source")
    words = [folder if isinstance(folder, str) else "FOLDER", target, "--images", "IMAGES"]
    return words + _options(parameters, {"format": "--format"})


_COMMANDS: dict[str, Callable[[Mapping[str, Any], PoolSummary, str, str], Words]] = {
    "build": _build,
    "prune": _prune,
    "encode": _encode,
    "import": _import,
}


def _options(parameters: Mapping[str, Any], names: Mapping[str, str]) -> Words:
    words: Words = []
    for name, option in names.items():
        if parameters.get(name) is not None:
            words += [option, _value(parameters[name])]
    return words


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"
    return shortened(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def parents(lineage: tuple[LineageStep, ...]) -> list[str]:
    """Return the content digests of the pools a pool came from, oldest first."""
    return [step.parent_digest for step in lineage if step.parent_digest is not None]
