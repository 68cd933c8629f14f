"""Labelling as a pool was labelled: its manifest says how, so it can be made again, or at another ratio.

A manifest names everything that decides a label but two: the images and the teachers' weights, of which it
keeps digests.
"""

from __future__ import annotations

from typing import Any

from lpld_core.relabel.settings import BuildSettings
from lpld_core.settings import DEFAULT_WEIGHTS, TeacherChoice
from lpld_labels.codecs import CODECS
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import Augmentation, LineageStep, Manifest
from lpld_labels.format.schema import Views
from lpld_labels.transforms.past import Past, past_of


def settings_like(manifest: Manifest, *, where: str) -> BuildSettings:
    """Return the settings a pool was built with; refuse one that `build` cannot make again."""
    past = past_of(manifest)
    if past.build is None:
        raise InvalidArgumentError(
            "the pool was not labelled by build, so there is nothing to follow",
            where=where,
            expected="a lineage that begins with 'build'",
            got=manifest.header.lineage[0].operation[:40] if manifest.header.lineage else "none",
        )
    header, known = manifest.header, past.build
    how = header.augmentation
    settings = BuildSettings(
        **_views(how, header.batch_size, where=where),
        epochs=_whole(known.get("epochs"), "epochs", where),
        ratio=past.ratio,
        seed=header.seed or 0,
        replayable_by=known.get("replayable_by"),
        teachers=_teachers(manifest, known.get("weights")),
        fewer_classes=_fewer_classes(manifest, past),
        codec=_built_codec(manifest, past),
        views=_built_views(manifest, past),
        pack=bool(manifest.files_of("packed")),
        amp=bool(known.get("amp")),
        threads=known["threads"] if isinstance(known.get("threads"), int) else None,
    )
    if settings.augmentation((how.output_height, how.output_width)) != how:
        raise InvalidArgumentError(
            "the pool's views were drawn in a way that build has no options for", where=where, got=how
        )
    return settings


def later_steps(manifest: Manifest) -> tuple[LineageStep, ...]:
    """Return what was done to a pool after it was built, but for what `settings_like` leaves out at once."""
    return past_of(manifest).later


def _views(how: Augmentation, batch_size: int, *, where: str) -> dict[str, Any]:
    if how.crop_scale is None:
        raise InvalidArgumentError("the pool's views are not cropped, which build always does", where=where)
    return {
        "batch_size": batch_size,
        "crop_scale": how.crop_scale,
        "flip": how.flip_probability is not None,
        "mix": how.mix,
        "cutout_fraction": how.cutout_fraction,
        "patch_grid": how.patch_grid,
        "resize": how.resize,
    }


def _teachers(manifest: Manifest, recorded: object) -> tuple[TeacherChoice, ...]:
    how = manifest.header.augmentation
    words = list(recorded) if isinstance(recorded, (list, tuple)) else []
    words += [None] * len(manifest.header.teachers)
    return tuple(
        TeacherChoice(
            name=teacher.name,
            weights=word if isinstance(word, str) else DEFAULT_WEIGHTS,
            input_size=(how.output_height, how.output_width),
            mean=teacher.mean,
            std=teacher.std,
        )
        for teacher, word in zip(manifest.header.teachers, words, strict=False)
    )


def _whole(value: object, name: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidArgumentError(
            f"the pool's lineage does not say '{name}'", where=where, expected="a number >= 1", got=value
        )
    return value


def _built_codec(manifest: Manifest, past: Past) -> str:
    """Return the codec a pool was built with, as it is asked for."""
    known = past.build or {}
    if isinstance(known.get("codec"), str):
        return str(known["codec"])
    encodes = [step.parameters for step in past.later if "codec_before" in step.parameters]
    if encodes:
        return str(encodes[0]["codec_before"])
    kind = CODECS.get(manifest.codec.name)
    if kind is None or kind.fitted:
        return manifest.codec.name
    return kind.restore(manifest.codec.parameters, {}).spec


def _built_views(manifest: Manifest, past: Past) -> Views:
    """Return whether a pool was built with its views."""
    stated = (past.build or {}).get("views", manifest.views)
    return "drawn" if stated == "drawn" else "stored"


def _fewer_classes(manifest: Manifest, past: Past) -> bool:
    """Return whether a pool was built from a folder that may have fewer classes than its teacher."""
    stated = (past.build or {}).get("fewer_classes")
    return stated if isinstance(stated, bool) else manifest.coverage.classes < manifest.header.classes
