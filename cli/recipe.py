"""The commands that reproduce a pool, from the settings in its lineage.

Capital words stand for paths, which pools do not record: IMAGES, FOLDER, WEIGHTS, POOL for the result, and
FIRST for a pool without lineage. Lines that begin with # are comments.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import click

from lpld_labels.inspect.text import printable

if TYPE_CHECKING:
    from lpld_labels.format.manifest import LineageStep, Manifest

_MACHINE = {"device", "workers", "image_cache", "part", "jobs"}
"""Settings that do not change the pool's content."""
_REPEATED = ("build", "prune", "encode", "plan", "import")


def recipe(manifest: Manifest) -> list[str]:
    """Return the commands and comments, one per line."""
    lineage = manifest.header.lineage
    # If a pool grew by several builds, the command of the last build labels all batches.
    builds = sum(1 for _ in takewhile(lambda step: step.operation == "build", lineage))
    steps = lineage[max(builds - 1, 0) :]
    if not steps:
        return ["# the pool does not record how it was made"]
    packs = bool(manifest.files_of("packed")) and not _settings(manifest, steps[0]).get("pack")
    lines = []
    if builds:
        lines.append(f"# images: {manifest.counts.images} of {manifest.header.classes} classes")
        for teacher in manifest.header.teachers:
            digest = teacher.weights_digest or "unknown"
            lines.append(f"# weights of {printable(teacher.name)}: digest {digest}")
    source = "FIRST"
    for number, step in enumerate(steps, 1):
        target = "POOL" if number == len(steps) and not packs else f"POOL{number}"
        words = _words(manifest, step, source, target)
        if words:
            # Commands refuse names with control characters.
            known = [word if word.isprintable() else printable(word) for word in words]
            lines.append(shlex.join(["lpld-labels", *known]))
        else:
            lines.append(f"# {printable(step.operation)}: how to repeat this step is not recorded")
        source = target
    if packs:
        lines.append(shlex.join(["lpld-labels", "copy", source, "POOL", "--images", "IMAGES"]))
    return lines


def _words(manifest: Manifest, step: LineageStep, source: str, target: str) -> list[str]:
    """Return the words of the command that repeats a step; an empty list if the step cannot be repeated."""
    from .main import group

    settings = _settings(manifest, step)
    command = group.get_command(click.Context(group), step.operation)
    if command is None or step.operation not in _REPEATED or not settings:
        return []
    folder = step.parameters.get("source")
    places = {
        "build": ["IMAGES", target],
        "import": [folder if isinstance(folder, str) else "FOLDER", target, "--images", "IMAGES"],
        "plan": [source, "--apply", target],
    }.get(step.operation, [source, target])
    return [step.operation, *places, *_options(command, settings)]


def _settings(manifest: Manifest, step: LineageStep) -> dict[str, Any]:
    """Return the option values of the command that repeats a step, by option name."""
    found, known = step.parameters.get("settings"), step.parameters
    settings: dict[str, Any] = found if isinstance(found, dict) else {}
    if step.operation == "build":
        teachers = manifest.header.teachers
        weights = [one.get("weights") for one in settings.get("teachers") or () if isinstance(one, dict)]
        normalisations = {(teacher.mean, teacher.std) for teacher in teachers}
        mean, std = normalisations.pop() if len(normalisations) == 1 else (None, None)
        settings = settings | {
            "teacher": [teacher.name for teacher in teachers],
            "weights": [word or "WEIGHTS" for word in weights] or ["WEIGHTS"] * len(teachers),
            "size": manifest.header.augmentation.output_height,
            "mean": mean,
            "std": std,
            # Rounding of sums depends on the thread count.
            "threads": known.get("threads"),
        }
    if step.operation == "import":
        settings = settings | {"format": known.get("format"), "skip_bad": bool(known.get("holes"))}
    return {name: value for name, value in settings.items() if name not in _MACHINE}


def _options(command: click.Command, settings: dict[str, Any]) -> Iterator[str]:
    """Yield the words of all options with values other than the default."""
    for param in command.params:
        value = settings.get(param.name or "")
        default = param.default if isinstance(param.default, (bool, int, float, str)) else None
        if not isinstance(param, click.Option) or value in (None, [], ()) or value == default:
            continue
        option = max(param.opts, key=len)
        values = value if isinstance(value, (list, tuple)) else [value]
        if isinstance(value, bool):
            if value or param.secondary_opts:
                yield option if value else param.secondary_opts[0]
        elif param.multiple:
            for one in values:
                yield from (option, _value(one))
        elif param.nargs > 1:
            yield from (option, *map(_value, values))
        else:
            yield from (option, ",".join(map(_value, values)))


def _value(value: object) -> str:
    """Return a value as text, not rounded: a rounded value would make a different pool."""
    if isinstance(value, float):
        return str(int(value)) if value == int(value) else repr(value)
    return printable(str(value))
