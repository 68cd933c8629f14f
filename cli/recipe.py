"""The commands that make a pool again, from the settings that its lineage records.

Capital words stand for what pools do not keep: IMAGES, FOLDER and WEIGHTS are paths, FIRST is a pool whose
making is not recorded, POOL the pool that comes of it. Lines that begin with # say what to look out for.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from lpld_labels.inspect.text import printable

if TYPE_CHECKING:
    from lpld_labels.format.manifest import LineageStep, Manifest

_MACHINE = {"device", "workers", "image_cache", "part", "jobs"}
"""Settings that say where work is done and decide nothing about a pool."""
_REPEATED = ("build", "prune", "encode", "plan", "import")


def recipe(manifest: Manifest) -> list[str]:
    """Return commands, one a line, and remarks that begin with #."""
    steps = _steps(manifest)
    if not steps:
        return ["# how this pool was made is not recorded"]
    packs = bool(manifest.files_of("packed")) and not _settings(manifest, steps[0]).get("pack")
    lines = _remarks(manifest) if steps[0].operation == "build" else []
    source = "FIRST"
    for number, step in enumerate(steps, 1):
        target = "POOL" if number == len(steps) and not packs else f"POOL{number}"
        words = _words(manifest, step, source, target)
        if words:
            lines.append(shlex.join(["lpld-labels", *map(_typable, words)]))
        else:
            lines.append(f"# {printable(step.operation)}: how to repeat this step is not recorded")
        source = target
    if packs:
        lines.append(shlex.join(["lpld-labels", "copy", source, "POOL", "--images", "IMAGES"]))
    return lines


def _steps(manifest: Manifest) -> list[LineageStep]:
    """Return the steps to repeat: of builds that grew a pool, the last does what all did."""
    lineage = manifest.header.lineage
    builds = 0
    while builds < len(lineage) and lineage[builds].operation == "build":
        builds += 1
    return list(lineage[max(builds - 1, 0) :])


def _remarks(manifest: Manifest) -> list[str]:
    """Say what the images and weights must be for the labels to be the same."""
    header = manifest.header
    weights = [
        f"# weights of {printable(teacher.name)}: digest {teacher.weights_digest or 'unknown'}"
        for teacher in header.teachers
    ]
    return [f"# images: {manifest.counts.images} of {header.classes} classes", *weights]


def _words(manifest: Manifest, step: LineageStep, source: str, target: str) -> list[str]:
    """Return the words of a command; none where the step cannot be repeated."""
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
    """Return the values of a command's options, by name."""
    found = step.parameters.get("settings")
    settings: dict[str, Any] = found if isinstance(found, dict) else {}
    if step.operation == "build":
        settings = settings | _teachers(manifest, settings.get("teachers"))
        # How sums are rounded depends on it.
        settings["threads"] = step.parameters.get("threads")
    if step.operation == "import":
        known = step.parameters
        settings = settings | {"label_format": known.get("format"), "skip_bad": bool(known.get("holes"))}
    return {name: value for name, value in settings.items() if name not in _MACHINE}


def _teachers(manifest: Manifest, recorded: Any) -> dict[str, Any]:
    """Return the options about teachers."""
    how, teachers = manifest.header.augmentation, manifest.header.teachers
    weights = [one.get("weights") for one in recorded or () if isinstance(one, dict)]
    normalisations = {(teacher.mean, teacher.std) for teacher in teachers}
    mean, std = normalisations.pop() if len(normalisations) == 1 else (None, None)
    return {
        "teachers": [teacher.name for teacher in teachers],
        "weights": [word or "WEIGHTS" for word in weights] or ["WEIGHTS"] * len(teachers),
        "size": how.output_height,
        "mean": mean,
        "std": std,
    }


def _options(command: click.Command, settings: dict[str, Any]) -> Iterator[str]:
    """Yield the options whose values are not the default ones."""
    for param in command.params:
        value = settings.get(param.name or "")
        default = param.default if isinstance(param.default, (bool, int, float, str)) else None
        if not isinstance(param, click.Option) or value in (None, [], ()) or value == default:
            continue
        option = max(param.opts, key=len)
        if isinstance(value, bool):
            if value or param.secondary_opts:
                yield option if value else param.secondary_opts[0]
        elif param.multiple:
            for one in value:
                yield from (option, _value(one))
        elif isinstance(value, (list, tuple)) and param.nargs > 1:
            yield from (option, *map(_value, value))
        elif isinstance(value, (list, tuple)):
            yield from (option, ",".join(map(_value, value)))
        else:
            yield from (option, _value(value))


def _value(value: object) -> str:
    """Return a value exactly: a rounded one would not make the same pool."""
    if isinstance(value, float):
        return str(int(value)) if value == int(value) else repr(value)
    return printable(str(value))


def _typable(word: str) -> str:
    """Return a word without control characters: no name that commands take has any."""
    return word if word.isprintable() else printable(word)
