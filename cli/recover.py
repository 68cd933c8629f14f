"""``lpld-labels recover``: make a few images per class with a teacher."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from lpld_core.recover.settings import (
    RECOVERY_PRESETS,
    ImageSettings,
    Method,
    PresetName,
    RdedSettings,
    RecoverSettings,
    method_settings,
)

from .common import json_option, look_over, overwrite_option
from .console import print_json, save_html
from .groups import EngineOptions, NetworkOptions
from .options import settings_options, take
from .parameters import PART
from .progress import Progress, progress_bar

if TYPE_CHECKING:
    from lpld_core.recover.run import RunSummary
    from lpld_core.settings import Part
    from lpld_core.teachers.teacher import LoadedTeacher, Machine
    from lpld_labels.exec.job import Executor


@dataclass(frozen=True, kw_only=True)
class Options(NetworkOptions):
    """What the command line said.

    settings: options that are named as the method's settings are; None where the method decides.
    """

    out: Path
    method: Method
    statistics: Path | None
    real: Path | None
    preset: PresetName | None
    part: Part | None
    html: Path | None
    overwrite: bool
    as_json: bool
    workers: EngineOptions
    settings: dict[str, Any]


@click.command("recover")
@click.argument("out", type=click.Path(path_type=Path))
@settings_options(NetworkOptions)
@click.option("--method", type=click.Choice(get_args(Method)), default="lpld", show_default=True)
@click.option(
    "--statistics", type=click.Path(path_type=Path), help="Class statistics from squeeze (lpld needs them)."
)
@click.option(
    "--real", type=click.Path(path_type=Path), help="Real images: what rded cuts up; class names for others."
)
@click.option(
    "--preset",
    type=click.Choice(list(RECOVERY_PRESETS)),
    help="Iterations, lr, alpha and roll of the paper's programs "
    "[default: tiny up to 64 px, imagenet1k above].",
)
@settings_options(RecoverSettings, unset=True)
@settings_options(RdedSettings, unset=True, leave_out=ImageSettings)
@click.option("--part", type=PART, help="Make one share of the groups; see the examples.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also show the images as a page, beside those of --real where given.",
)
@settings_options(EngineOptions)
@overwrite_option
@json_option("text")
def command(**given: Any) -> None:
    """Make images from what a teacher remembers and save them as the image folder OUT.

    \b
    lpld   a class's images are optimised together towards its class statistics
    sre2l  images of many classes are optimised together towards the global statistics
    cda    sre2l with crops that start whole and shrink
    rded   no optimisation: the teacher's favourite crops of real images, stitched 2 x 2

    Run the same command again after a crash or Ctrl-C: it goes on where it was. OUT gets
    recover.json with all settings and contact_sheet.png to look at; --html writes a page.
    rded goes on with the real images it began with, or copies of them, and refuses others.

    \b
    Examples:
      lpld-labels recover syn/in1k --teacher resnet18 --statistics in1k.safetensors --ipc 10 --device cuda
      lpld-labels recover syn/sre2l --teacher resnet18 --method sre2l --ipc 10 --device cuda
      lpld-labels recover syn/plus_c --teacher resnet18 --statistics-kind global --ipc 50
      lpld-labels recover syn/rded --teacher resnet18 --method rded --real imagenet/train --ipc 10

    \b
    On four GPUs; on machines that share a disk, a part each, or all of a Ray cluster:
      lpld-labels recover syn/in1k --teacher resnet18 --statistics in1k.safetensors --ipc 10 \\
          --device cuda --jobs 4
      lpld-labels recover syn/in1k --teacher resnet18 --statistics in1k.safetensors --ipc 10 \\
          --device cuda --part 1/3                                      (2/3, 3/3)
      lpld-labels recover syn/in1k --teacher resnet18 --statistics in1k.safetensors --ipc 10 \\
          --device cuda --engine ray --ray-address 10.0.0.1:6379 --gpus-per-task 1
    """
    options = _options(given)
    _check(options)
    machine = options.prepare_machine(options.workers)
    if options.html is not None:
        from lpld_labels.inspect.page import require_page_place

        require_page_place(options.html, *([] if options.real is None else [options.real]))
    if options.real is not None:
        look_over(options.real)
    try:
        with options.workers.opened() as engine:
            teacher = options.load(device=None if engine.on_this_machine else "cpu")
            with progress_bar(f"{options.method} images") as progress:
                summary = _make(options, teacher, engine, machine, progress)
    except KeyboardInterrupt:
        click.echo(f"stopped: what is done is safe in {options.out}; run the same command again", err=True)
        raise
    _show(options, summary)
    if options.html is not None and summary.complete:
        _write_page(options, options.html)
    elif options.html is not None:
        click.echo("no page yet: it comes with the last of the groups", err=True)


def _write_page(options: Options, path: Path) -> None:
    from lpld_core.image_pages import recovery_page
    from lpld_core.images import RealFolder
    from lpld_core.recover.folder import RECORD_FILE
    from lpld_labels.format.strict_json import from_json

    record = from_json((options.out / RECORD_FILE).read_bytes(), where=str(options.out / RECORD_FILE))
    folders: list[tuple[str, RealFolder]] = [(options.method, RealFolder.open(options.out))]
    folders += [] if options.real is None else [("real", RealFolder.open(options.real))]
    save_html(path, recovery_page(record, folders))


def _options(given: dict[str, Any]) -> Options:
    """Tell settings of the method from the rest of the command line."""
    workers = take(EngineOptions, given)
    about_run = {name: given.pop(name) for name in Options.__dataclass_fields__ if name in given}
    settings = {name: value for name, value in given.items() if value is not None}
    return Options(settings=settings, workers=workers, **about_run)


def _check(options: Options) -> None:
    """Refuse options that contradict each other, before anything is loaded."""
    kind = options.settings.get("statistics_kind")
    if options.method == "rded" and options.real is None:
        raise click.UsageError("--method rded needs --real, the folder of real images to cut up")
    if options.method == "lpld" and kind != "global" and options.statistics is None:
        raise click.UsageError(
            "--method lpld needs --statistics FILE (see squeeze) or --statistics-kind global"
        )
    if options.method != "lpld" and kind == "class":
        raise click.UsageError(f"--method {options.method} has no class statistics to match")
    from lpld_labels.transforms.outputs import require_apart

    inputs = [path for path in (options.real, options.statistics) if path is not None]
    require_apart(options.out, *inputs)
    if options.overwrite and options.part is not None:
        raise click.UsageError("--overwrite is for a whole run: it does not go with --part")


def _make(
    options: Options, teacher: LoadedTeacher, engine: Executor, machine: Machine, progress: Progress
) -> RunSummary:
    from lpld_core.images import RealFolder
    from lpld_core.recover.run import recover_images
    from lpld_core.squeeze.statistics import ClassStatistics

    settings = method_settings(
        options.method,
        size=teacher.input_size,
        classes=teacher.classes,
        preset=options.preset,
        **options.settings,
    )
    real = None if options.real is None else RealFolder.open(options.real)
    return recover_images(
        teacher,
        options.out,
        settings=settings,
        statistics=None if options.statistics is None else ClassStatistics.load(options.statistics),
        real=real,
        class_names=None if real is None else real.class_names,
        part=options.part,
        overwrite=options.overwrite,
        executor=engine,
        machine=machine,
        progress=progress,
    )


def _show(options: Options, summary: RunSummary) -> None:
    sheet = None if summary.contact_sheet is None else str(summary.contact_sheet)
    if options.as_json:
        print_json(
            {
                "images": str(options.out),
                "method": options.method,
                "made_images": summary.images,
                "made_groups": summary.made_groups,
                "kept_groups": summary.kept_groups,
                "seconds": round(summary.seconds, 3),
                "complete": summary.complete,
                "contact_sheet": sheet,
                "cross_entropy": summary.cross_entropy,
                "batchnorm_loss": summary.batchnorm,
            }
        )
        return
    click.echo(
        f"{options.out}: {summary.images} images made in {summary.seconds:.0f} s "
        f"({summary.made_groups} groups; {summary.kept_groups} were there)"
    )
    if summary.cross_entropy is not None:
        click.echo(
            f"last losses: cross-entropy {summary.cross_entropy:.3f}, BatchNorm {summary.batchnorm:.2f}"
        )
    if sheet is not None:
        click.echo(f"look at {sheet}")
    else:
        click.echo("other groups are still missing; the contact sheet comes with the last of them")
