"""The command lines that would make a pool again, from its manifest alone.

Capital words stand for what pools do not keep: IMAGES and WEIGHTS are paths, FIRST is a pool whose making is
not recorded, POOL the pool that comes of it. Lines that begin with # say what to look out for.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lpld_labels.codecs import CODECS
from lpld_labels.errors import LabelPoolError
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.format.schema import Views
from lpld_labels.inspect.text import printable, shortened
from lpld_labels.transforms.past import Past, codec_request, past_of, planned, prune_settings
from lpld_labels.transforms.prune import PruneSettings

Words = list[str]
# No argument of a command can hold a zero byte, so neither is mistaken for one.
_SOURCE, _TARGET = "\0source", "\0target"


def recipe(manifest: Manifest) -> list[str]:
    """Return commands, one a line, and remarks that begin with #."""
    past = past_of(manifest)
    steps = _steps(manifest, past)
    packs = bool(manifest.files_of("packed")) and past.build is None
    lines: list[str] = [] if past.build is None else _remarks(manifest)
    if not steps:
        lines.append("# how this pool was made is not recorded")
    source = "FIRST"
    for number, (words, remark) in enumerate(steps, 1):
        last = number == len(steps) and not packs
        target = "POOL" if last else f"POOL{number}"
        if remark:
            lines.append(f"# {printable(remark)}")
        if words:
            named = [{_SOURCE: source, _TARGET: target}.get(word, word) for word in words]
            lines.append(shlex.join(["lpld-labels", *map(_typable, named)]))
        source = target
    if packs:
        lines.append(shlex.join(["lpld-labels", "pack", source, "POOL", "--images", "IMAGES"]))
    return lines


def _remarks(manifest: Manifest) -> list[str]:
    """Say what the images and weights must be for the labels to be the same."""
    header = manifest.header
    weights = [
        f"# weights of {printable(teacher.name)}: digest {teacher.weights_digest or 'unknown'}"
        for teacher in header.teachers
    ]
    return [f"# images: {manifest.counts.images} of {header.classes} classes", *weights]


def _steps(manifest: Manifest, past: Past) -> list[tuple[Words, str]]:
    """Return words and a remark for each step; _SOURCE and _TARGET are the pools before and after it."""
    steps: list[tuple[Words, str]] = []
    if past.build is not None:
        steps.append((_build(manifest, past, past.build), ""))
    later = list(past.later)
    while later:
        step = later.pop(0)
        if later and step.operation == "prune" and planned(later[0]):
            step = later.pop(0)
        steps.append(_later(step))
    return steps


def _later(step: LineageStep) -> tuple[Words, str]:
    try:
        if planned(step):
            return _plan(step), "planned; options of `plan` other than these are not recorded"
        if step.operation == "prune":
            return ["prune", _SOURCE, _TARGET, *_prune(prune_settings(step))], ""
        if step.operation == "encode":
            return _encode(step), ""
        if step.operation == "import":
            return _import(step), ""
    except LabelPoolError:
        pass
    if step.operation == "merge":
        count = len(step.parameters.get("pools", ()))
        return [], f"merge of {count} pools: each has a past of its own, see inspect --json"
    return [], f"{shortened(step.operation)}: how to repeat this step is not known"


def _build(manifest: Manifest, past: Past, known: Mapping[str, Any]) -> Words:
    header, how = manifest.header, manifest.header.augmentation
    recorded = known.get("weights") or []
    words = ["build", "IMAGES", _TARGET]
    for number, teacher in enumerate(header.teachers):
        found = recorded[number] if number < len(recorded) else None
        words += ["--teacher", teacher.name, "--teacher-weights", found or "WEIGHTS"]
    words += ["--size", str(how.output_height)]
    normalisations = {(teacher.mean, teacher.std) for teacher in header.teachers}
    if len(normalisations) == 1:
        ((mean, std),) = normalisations
        for option, values in (("--mean", mean), ("--std", std)):
            words += [] if values is None else [option, ",".join(map(repr, values))]
    words += ["--epochs", _value(known.get("epochs", "EPOCHS")), "--batch-size", str(header.batch_size)]
    words += ["--seed", str(header.seed)] + ([] if past.ratio == 1 else ["--ratio", _value(past.ratio)])
    if how.crop_scale is not None:
        words += ["--crop-scale", *map(repr, how.crop_scale)]
    words += ["--flip" if how.flip_probability else "--no-flip", "--mix", how.mix, "--resize", how.resize]
    words += [] if how.cutout_fraction is None else ["--cutout", _value(how.cutout_fraction)]
    words += [] if how.patch_grid is None else ["--patches", str(how.patch_grid)]
    replayer = known.get("replayable_by")
    words += [] if replayer is None else ["--replayable-by", _value(replayer)]
    words += ["--codec", built_codec(manifest, past), "--views", built_views(manifest, past)]
    words += ["--fewer-classes"] if fewer_classes(manifest, past) else []
    words += ["--pack"] if manifest.files_of("packed") else []
    words += ["--amp"] if known.get("amp") else []
    return words + ([] if known.get("threads") is None else ["--threads", _value(known["threads"])])


def built_codec(manifest: Manifest, past: Past) -> str:
    """Return the codec a pool was built with, as it is asked for."""
    known = past.build or {}
    if isinstance(known.get("codec"), str):
        return str(known["codec"])
    encodes = [step for step in past.later if "codec" in step.parameters]
    if encodes:
        return str(encodes[0].parameters.get("from", "f16"))
    kind = CODECS.get(manifest.codec.name)
    if kind is None or kind.fitted:
        return manifest.codec.name
    return kind.restore(manifest.codec.parameters, {}).spec


def built_views(manifest: Manifest, past: Past) -> Views:
    """Return whether a pool was built with its views."""
    stated = (past.build or {}).get("views", manifest.views)
    return "drawn" if stated == "drawn" else "stored"


def fewer_classes(manifest: Manifest, past: Past) -> bool:
    """Return whether a pool was built from a folder that may have fewer classes than its teacher."""
    stated = (past.build or {}).get("fewer_classes")
    return stated if isinstance(stated, bool) else manifest.coverage.classes < manifest.header.classes


def _prune(settings: PruneSettings) -> Words:
    """Return the options of whatever is not as it is when nothing is said."""
    words: Words = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        option = f"--{field.name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value != field.default or field.name == "seed":
            words += [] if value is None else [option, _value(value)]
    return words


def _encode(step: LineageStep) -> Words:
    request, known = codec_request(step), step.parameters
    words = ["encode", _SOURCE, _TARGET]
    if request is not None:
        words += ["--codec", request.name]
        for name, value in request.target().items():
            words += [f"--{name.replace('_', '-')}", _value(value)]
        source = CODECS.get(str(known.get("from")))
        words += ["--from-lossy"] if source is not None and not source.lossless else []
    return words + ([] if known.get("views") is None else ["--views", _value(known["views"])])


def _plan(step: LineageStep) -> Words:
    known = step.parameters
    words = ["plan", _SOURCE, "--budget", _value(known["plan_budget"]), "--codec", _value(known.get("codec"))]
    return [*words, "--apply", _TARGET]


def _import(step: LineageStep) -> Words:
    folder = step.parameters.get("source")
    words = ["import", folder if isinstance(folder, str) else "FOLDER", _TARGET, "--images", "IMAGES"]
    known = step.parameters.get("format")
    return words + ([] if known is None else ["--format", _value(known)])


def _typable(word: str) -> str:
    """Return a word without control characters: no name that commands take has any."""
    return word if word.isprintable() else printable(word)


def _value(value: object) -> str:
    """Return a value exactly: what is rounded would not make the same pool."""
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    return repr(value) if isinstance(value, float) else shortened(str(value))
