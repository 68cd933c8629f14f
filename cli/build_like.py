"""``build --like``: what the pool that is followed says, and what the command line says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .common_options import quiet
from .progress import progress_bar
from .teacher_options import teacher_choices

if TYPE_CHECKING:
    from lpld_core.relabel.build import BuildResult
    from lpld_core.relabel.settings import BuildSettings
    from lpld_core.settings import TeacherChoice
    from lpld_core.teachers.ensemble import Ensemble
    from lpld_labels.exec.job import Engine
    from lpld_labels.format.manifest import LineageStep, Manifest

like_option = click.option(
    "--like",
    type=click.Path(),
    metavar="POOL",
    help="Label as POOL was labelled, and prune and encode as it was; its pool.json is enough. Options "
    "replace parts of it.",
)
# What decides a pool's content, as far as it can be typed.
_DECIDING = (
    *("teachers", "size", "mean", "std", "epochs", "batch_size", "ratio", "seed", "crop_scale", "flip"),
    *("mix", "cutout_fraction", "patch_grid", "resize", "replayable_by", "codec", "amp"),
)
# Options whose defaults are the machine's, whatever pool is followed.
_OF_MACHINE = ("teachers", "weights", "size", "mean", "std", "device", "seal_seconds")


@dataclass(frozen=True, kw_only=True)
class Model:
    """The pool that is followed. steps: what was done to it after it was built. changed: options given."""

    where: str
    manifest: Manifest
    steps: tuple[LineageStep, ...]
    changed: tuple[str, ...]

    @staticmethod
    def read(where: str) -> Model:
        """Read the manifest; nothing else of the pool is needed."""
        from lpld_core.relabel.like import later_steps
        from lpld_labels.pool.pool_files import manifest_of

        manifest = manifest_of(where)
        steps = later_steps(manifest)
        return Model(where=where, manifest=manifest, steps=steps, changed=_typed(*_DECIDING))

    def settings(self, given: dict[str, Any]) -> BuildSettings:
        """Return what the pool was built with; of the options, forget those that nobody typed."""
        from lpld_core.relabel.like import settings_like

        if _typed("preset"):
            raise click.UsageError("--like is a preset of its own: give one of --like and --preset")
        if self.steps and given["part"] is not None:
            raise click.UsageError("--part does not go with --like of a pool that was pruned or encoded")
        base = settings_like(self.manifest, where=self.where)
        given |= {name: None for name in given if name not in _OF_MACHINE and not _typed(name)}
        return base

    def check(self, ensemble: Ensemble) -> None:
        """Refuse teachers that are not the pool's, unless others were asked for."""
        from lpld_core.relabel.verify_teacher import wrong_teachers
        from lpld_labels.errors import InvalidArgumentError

        problems = () if "teachers" in self.changed else wrong_teachers(self.manifest.header, ensemble)
        if problems:
            raise InvalidArgumentError(
                problems[0],
                where=self.where,
                hint="give the pool's weights (--teacher-weights), or another --teacher on purpose",
            )

    def build(
        self,
        out: Path,
        build: Callable[[Path], BuildResult],
        *,
        engine: Engine,
        overwrite: bool,
    ) -> BuildResult:
        """Build beside `out` and do to the pool what was done to the one that is followed."""
        from lpld_core.relabel.build import BuildResult
        from lpld_core.relabel.like import build_and_repeat
        from lpld_labels.format.schema import MANIFEST_FILE
        from lpld_labels.pool.pool_files import manifest_of

        if (out / MANIFEST_FILE).is_file() and not self.changed:
            found = manifest_of(out)
            if found.content_digest == self.manifest.content_digest:
                return BuildResult(labelled=0, found=found.counts.batches, manifest=found)
        built: list[BuildResult] = []
        manifest = build_and_repeat(
            out,
            self.steps,
            lambda place: built.append(build(place)),
            engine=engine,
            overwrite=overwrite,
            bar=progress_bar,
        )
        return replace(built[0], manifest=manifest)

    def compare(self, manifest: Manifest | None) -> bool | None:
        """Say whether a pool came out the same, and return it; None for a part."""
        if manifest is None:
            return None
        same = manifest.content_digest == self.manifest.content_digest
        if same and not quiet():
            click.echo(f"the content is that of {self.where}", err=True)
        elif not same and not self.changed and not quiet():
            click.echo(
                f"warning: the content is not that of {self.where}: other images, or another machine or "
                "other libraries, whose sums round otherwise",
                err=True,
            )
        return same


def chosen_teachers(base: BuildSettings, about: dict[str, Any], *, like: bool) -> tuple[TeacherChoice, ...]:
    """Return the teachers that were named, else those of the settings with what was said of them.

    about: the options of `teacher_options`. like: whether the settings are those of a pool, which say more.
    """
    names = about.pop("teachers")
    if names or not like:
        return tuple(teacher_choices(names or [teacher.name for teacher in base.teachers], **about))
    about["weights"] = about["weights"] or [teacher.weights for teacher in base.teachers]
    said = teacher_choices([teacher.name for teacher in base.teachers], **about)
    return tuple(
        replace(
            teacher,
            weights=choice.weights,
            input_size=choice.input_size or teacher.input_size,
            mean=choice.mean or teacher.mean,
            std=choice.std or teacher.std,
        )
        for teacher, choice in zip(base.teachers, said, strict=True)
    )


def _typed(*names: str) -> tuple[str, ...]:
    """Return which of some options were given on the command line."""
    context = click.get_current_context()
    default = click.core.ParameterSource.DEFAULT
    return tuple(name for name in names if context.get_parameter_source(name) is not default)
