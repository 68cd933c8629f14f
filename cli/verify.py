"""``lpld-labels verify``: check that a pool is intact and that its labels are its teacher's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from lpld_labels.format.limits import MAX_SEED
from lpld_labels.inspect.text import human_bytes
from lpld_labels.settings import Setting

from .console import print_json, stdout_console
from .groups import MachineOptions, TeacherOptions
from .options import FOLDER, json_option, pool_argument, settings_options, take
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_core.relabel.verify_teacher import TeacherCheck
    from lpld_labels.inspect.check import CheckReport


@dataclass(frozen=True, kw_only=True)
class Options(MachineOptions):
    """Options of the check with a teacher."""

    batches: Annotated[int, Setting("Batches to label again.", ge=1)] = 8
    tolerance: Annotated[
        float | None,
        Setting("Largest allowed difference of a label.  [default: what the codec rounds away]", ge=0),
    ] = None
    seed: Annotated[int, Setting("Seed of the sample of batches.", ge=0, le=MAX_SEED)] = 0
    amp: Annotated[bool, Setting("Mixed precision, as the pool was labelled.")] = False


@click.command("verify")
@pool_argument
@click.option(
    "--images",
    type=FOLDER,
    help="With --teacher: the labelled image folder; not needed if POOL carries its images.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="For pools from untrusted sources: check in a child process with limits, and report unneeded data.",
)
@settings_options(TeacherOptions)
@settings_options(Options)
@json_option
def command(pool: str, images: Path | None, strict: bool, as_json: bool, **given: Any) -> None:
    """Check that a pool is intact and, given its images and teacher, that its labels are correct.

    Compares file digests and page checksums, row counts, key order, ranges, duplicates and the digest of
    every batch; images that the pool carries are compared with their digests. Lists every damaged file.

    With --teacher, and --images unless the pool carries them, it then renders the views of sampled batches,
    runs the teacher on them and compares the labels as they are stored (logits or probabilities). A pool of
    several teachers needs all of them, in order. The exit code is 0 if everything is correct, else 1.

    --strict is for pools from untrusted sources: the check runs in a child process with limits on memory and
    time. It also reports what the format allows but our pools never contain, and where data could be hidden:
    files beside the pool's own (except README.md), symbolic links, manifest fields that readers ignore,
    unknown resize code.

    \b
    Examples:
      lpld-labels verify pools/in1k_ipc10
      lpld-labels verify pools/from_a_stranger --strict
      lpld-labels verify pools/in1k_ipc10 --json | jq '.problems[].file'
      lpld-labels verify pools/in1k_ipc10 --images syn/in1k_ipc10 --teacher resnet18 --batches 20
    """
    from lpld_labels.inspect.check import check_pool
    from lpld_labels.pool.pool_files import manifest_of
    from lpld_labels.render.images import no_images

    teachers = take(TeacherOptions, given)
    for name, value in (("--images", images), ("--size", teachers.size)):
        if value is not None and not teachers.teachers:
            raise click.UsageError(f"{name} goes with --teacher")
    if teachers.teachers and images is None and not manifest_of(pool).files_of("packed"):
        raise no_images(pool)
    with progress_bar("checking bytes") as progress:
        report = check_pool(pool, strict=strict, progress=progress)
    check = None
    if report.whole and teachers.teachers:
        check = _with_teacher(pool, images, teachers, take(Options, given))
    if as_json:
        document = {"whole": report.whole, **asdict(report)}
        if check is not None:
            document["teacher"] = {"agrees": check.agrees, **asdict(check)}
        print_json(document)
    else:
        _show_report(report)
        if check is not None:
            _show_check(check)
    click.get_current_context().exit(0 if report.whole and (check is None or check.agrees) else 1)


def _with_teacher(pool: str, images: Path | None, choice: TeacherOptions, options: Options) -> TeacherCheck:
    """Label sampled batches again, at the size that they have in the pool."""
    from lpld_core.relabel.verify_teacher import verify_with_teacher
    from lpld_core.teachers.ensemble import load_ensemble
    from lpld_labels.errors import InvalidArgumentError
    from lpld_labels.pool.reader import PoolReader

    choices, size = choice.choices(), choice.size
    options.prepare_machine()
    with PoolReader(pool) as reader, progress_bar("labelling batches again") as progress:
        how = reader.header.augmentation
        if size is not None and (size, size) != (how.output_height, how.output_width):
            raise InvalidArgumentError(
                "the pool's views have another size",
                where=reader.location,
                expected=f"--size {how.output_height}, or none",
                got=size,
            )
        ensemble = load_ensemble(choices, classes=reader.classes, device=options.device, amp=options.amp)
        return verify_with_teacher(
            reader,
            images,
            ensemble.teachers,
            batches=options.batches,
            seed=options.seed,
            tolerance=options.tolerance,
            amp=options.amp,
            progress=progress,
        )


def _show_report(report: CheckReport) -> None:
    for problem in report.problems:
        _print_verdict("damaged", f" {problem.file}: {problem.message}")
    _print_verdict(
        "whole" if report.whole else f"{len(report.problems)} problems",
        f": {report.files} files, {human_bytes(report.bytes)}, {report.batches} batches, "
        f"{report.rows} rows checked",
        good=report.whole,
    )


def _show_check(check: TeacherCheck) -> None:
    for problem in check.wrong_teachers:
        _print_verdict("wrong teacher", f" {problem}")
    first = check.first_difference
    if first is not None:
        _print_verdict(
            "differs",
            f" {check.rows_above_tolerance} of {check.rows} rows, first {first.key} "
            f"slot {first.slot} ({first.image}) by {first.difference:.4g}",
        )
    ties = f" ({check.near_ties} near-ties)" if check.near_ties else ""
    _print_verdict(
        "true" if check.agrees else "not true",
        f": {check.rows} rows of {check.batches} batches labelled again, largest difference "
        f"{check.largest_difference:.3g}, top-1 agreement {100 * check.top1_agreement:.2f} %{ties}",
        good=check.agrees,
    )


def _print_verdict(word: str, text: str, *, good: bool = False) -> None:
    """Print a line whose first word is green or red."""
    from rich.markup import escape

    colour = "green" if good else "red"
    stdout_console().print(f"[{colour}]{word}[/]{escape(text)}", highlight=False, soft_wrap=True)
