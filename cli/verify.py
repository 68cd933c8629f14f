"""``lpld-labels verify``: is a pool whole, and is it what its teacher says."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from lpld_labels.inspect.text import human_bytes

from .common import FOLDER, json_option, pool_argument
from .console import print_json, stdout_console
from .groups import MachineOptions, TeacherOptions, check_device
from .options import settings_options, take
from .parameters import SEED, NumberRange
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_core.relabel.verify_teacher import TeacherCheck
    from lpld_labels.inspect.check import CheckReport


@click.command("verify")
@pool_argument
@click.option(
    "--images",
    type=FOLDER,
    help="The labelled image folder; not needed if POOL carries its images. With --teacher, label some "
    "batches again and compare.",
)
@settings_options(TeacherOptions)
@click.option(
    "--batches", type=click.IntRange(1), default=8, show_default=True, help="Batches to label again."
)
@click.option(
    "--tolerance",
    type=NumberRange(0),
    help="Largest difference of a label to allow [default: what the codec rounds away].",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Which batches are sampled.")
@click.option(
    "--strict",
    is_flag=True,
    help="For pools from strangers: check in a child process with limits, and report unneeded data.",
)
@settings_options(MachineOptions)
@click.option("--amp", is_flag=True, help="Mixed precision, as the pool was labelled.")
@json_option("text")
def command(pool: str, as_json: bool, **options: Any) -> None:
    """Check that a pool is whole and, given its images and teacher, that its labels are true.

    Compares file digests and page checksums, row counts, key order, ranges, duplicates and the digest of
    every batch; images that the pool carries are compared with their digests. Lists every damaged file. With
    --teacher, and --images unless the pool carries them, it then renders the views of sampled batches, runs
    the teacher on them and compares labels as they are stored (logits, or probabilities). A pool of several
    teachers needs all of them, in order. Exit code 0: all is well, 1: not.

    For a pool from a stranger, give --strict: verify then works in a child process with limits of memory and
    time. It also reports what the format allows, no pool of ours has, and data could hide in: files beside
    the pool's own (but README.md), symbolic links, manifest fields that readers ignore, unknown resize code.

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

    for name in ("images", "size"):
        if options[name] is not None and not options["teachers"]:
            raise click.UsageError(f"--{name} goes with --teacher")
    if options["teachers"] and options["images"] is None and not manifest_of(pool).files_of("packed"):
        raise no_images(pool)
    with progress_bar("checking bytes") as progress:
        report = check_pool(pool, strict=options["strict"], progress=progress)
    teacher = _with_teacher(pool, options) if report.whole and options["teachers"] else None
    good = report.whole and (teacher is None or teacher.agrees)
    if as_json:
        document = {"whole": report.whole, **asdict(report)}
        if teacher is not None:
            document["teacher"] = {"agrees": teacher.agrees, **asdict(teacher)}
        print_json(document)
    else:
        _show_report(report)
        if teacher is not None:
            _show_teacher(teacher)
    click.get_current_context().exit(0 if good else 1)


def _with_teacher(pool: str, options: dict[str, Any]) -> TeacherCheck:
    """Label sampled batches again, at the size that they have in the pool."""
    import torch

    from lpld_core.relabel.verify_teacher import verify_with_teacher
    from lpld_core.teachers.ensemble import load_ensemble
    from lpld_labels.errors import InvalidArgumentError
    from lpld_labels.pool.reader import PoolReader

    size = options["size"]
    choices = take(TeacherOptions, options).choices()
    machine = take(MachineOptions, options)
    check_device(machine.device)
    if machine.threads is not None:
        torch.set_num_threads(machine.threads)
    with PoolReader(pool) as reader, progress_bar("labelling batches again") as progress:
        how = reader.header.augmentation
        if size is not None and (size, size) != (how.output_height, how.output_width):
            raise InvalidArgumentError(
                "the pool's views have another size",
                where=reader.location,
                expected=f"--size {how.output_height}, or none",
                got=size,
            )
        ensemble = load_ensemble(choices, classes=reader.classes, device=machine.device, amp=options["amp"])
        return verify_with_teacher(
            reader,
            options["images"],
            ensemble.teachers,
            batches=options["batches"],
            seed=options["seed"],
            tolerance=options["tolerance"],
            amp=options["amp"],
            progress=progress,
        )


def _show_report(report: CheckReport) -> None:
    from rich.markup import escape

    console = stdout_console()
    for problem in report.problems:
        text = escape(f"{problem.file}: {problem.message}")
        console.print(f"[red]damaged[/] {text}", highlight=False, soft_wrap=True)
    verdict = "[green]whole[/]" if report.whole else f"[red]{len(report.problems)} problems[/]"
    console.print(
        f"{verdict}: {report.files} files, {human_bytes(report.bytes)}, "
        f"{report.batches} batches, {report.rows} rows checked",
        highlight=False,
    )


def _show_teacher(check: TeacherCheck) -> None:
    from rich.markup import escape

    console = stdout_console()
    for problem in check.wrong_teachers:
        console.print(f"[red]wrong teacher[/] {escape(problem)}", highlight=False, soft_wrap=True)
    first = check.first_difference
    if first is not None:
        console.print(
            f"[red]differs[/] {check.rows_above_tolerance} of {check.rows} rows, first {first.key} "
            f"slot {first.slot} ({escape(first.image)}) by {first.difference:.4g}",
            highlight=False,
            soft_wrap=True,
        )
    verdict = "[green]true[/]" if check.agrees else "[red]not true[/]"
    ties = f" ({check.near_ties} near-ties)" if check.near_ties else ""
    console.print(
        f"{verdict}: {check.rows} rows of {check.batches} batches labelled again, largest difference "
        f"{check.largest_difference:.3g}, top-1 agreement {100 * check.top1_agreement:.2f} %{ties}",
        highlight=False,
    )
