"""``lpld-labels recover``: make a few images per class with a teacher."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_core.recover.plan import Part
from lpld_core.recover.settings import (
    IMAGE_FORMATS,
    METHODS,
    PRESETS,
    STATISTICS_KINDS,
    Preset,
    RdedSettings,
    RecoverSettings,
    fitting_group,
)

from .console import Progress, print_json, progress_bar
from .method_options import NetworkOptions, network_options
from .page_options import save_html

if TYPE_CHECKING:
    from lpld_core.recover.run import RunSummary
    from lpld_core.teachers.teacher import LoadedTeacher

_SMALL_SIDE = 64


def _part(ctx: click.Context, param: click.Parameter, value: str | None) -> Part:
    """Parse ``2/3``, the second of three shares."""
    del ctx, param
    if value is None:
        return Part()
    number, _, parts = value.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise click.BadParameter(f"expected I/N with 1 <= I <= N, got '{value}'")
    return Part(number=int(number), of=int(parts))


@dataclass(frozen=True, kw_only=True)
class Options(NetworkOptions):
    """What the command line said; None where preset or method decide."""

    out: Path
    ipc: int
    method: str
    statistics: Path | None
    statistics_kind: str | None
    real: Path | None
    preset: str | None
    iterations: int | None
    lr: float | None
    alpha: float | None
    roll: int | None
    smallest_crop: float
    first_layer_weight: float
    class_group: int | None
    batch_size: int
    crops: int
    candidates: int
    seed: int
    image_format: str
    quality: int
    part: Part
    html: Path | None
    as_json: bool


@click.command("recover")
@click.argument("out", type=click.Path(path_type=Path))
@network_options("teacher")
@click.option("--ipc", type=click.IntRange(1), required=True, help="Images per class.")
@click.option("--method", type=click.Choice(METHODS), default="lpld", show_default=True)
@click.option(
    "--statistics", type=click.Path(path_type=Path), help="Class statistics from squeeze (lpld needs them)."
)
@click.option(
    "--statistics-kind",
    type=click.Choice(STATISTICS_KINDS),
    help="What lpld matches [default: class]; global is the paper's '+C' ablation.",
)
@click.option(
    "--real", type=click.Path(path_type=Path), help="Real images: what rded cuts up; class names for others."
)
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    help="Iterations, lr, alpha and roll of the paper [default: tiny up to 64 px, imagenet1k above].",
)
@click.option("--iterations", type=click.IntRange(1), help="Steps of the optimiser per image.")
@click.option("--lr", type=click.FloatRange(0, min_open=True), help="Learning rate; falls to 0 by a cosine.")
@click.option("--alpha", type=click.FloatRange(0), help="Weight of the BatchNorm loss.")
@click.option("--roll", type=click.IntRange(0), help="Greatest random shift in pixels.")
@click.option(
    "--smallest-crop",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.08,
    show_default=True,
    help="Least area share of a random crop; cda starts at 1 and ends here.",
)
@click.option(
    "--first-layer-weight",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="Weight of the first BatchNorm layer; all others have 1.",
)
@click.option(
    "--class-group",
    type=click.IntRange(1),
    help="Classes (sre2l, cda: batches) in one forward pass; speed and memory only "
    "[default: about 100 images].",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Classes in a sre2l or cda batch.",
)
@click.option(
    "--crops", type=click.IntRange(1), default=5, show_default=True, help="rded: tried per real image."
)
@click.option(
    "--candidates",
    type=click.IntRange(1),
    default=300,
    show_default=True,
    help="rded: real images per class.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="All noise and views follow from it."
)
@click.option("--format", "image_format", type=click.Choice(IMAGE_FORMATS), default="jpeg", show_default=True)
@click.option("--quality", type=click.IntRange(1, 100), default=95, show_default=True, help="Of JPEG files.")
@click.option("--part", callback=_part, metavar="I/N", help="Make one share of the groups; see the examples.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also show the images as a page, beside those of --real where given.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def command(**given: Any) -> None:
    """Make images from what a teacher remembers and save them as the image folder OUT.

    \b
    lpld   a class's images are optimised together towards its class statistics
    sre2l  images of many classes are optimised together towards the global statistics
    cda    sre2l with crops that start whole and shrink
    rded   no optimisation: the teacher's favourite crops of real images, stitched 2 x 2

    Run the same command again after a crash or Ctrl-C: finished groups are kept. OUT gets
    recover.json with all settings and contact_sheet.png to look at; --html writes a page.

    \b
    Examples:
      lpld-labels recover syn/in1k --teacher resnet18 --statistics in1k.safetensors --ipc 10 --device cuda
      lpld-labels recover syn/sre2l --teacher resnet18 --method sre2l --ipc 10 --device cuda
      lpld-labels recover syn/plus_c --teacher resnet18 --statistics-kind global --ipc 50
      lpld-labels recover syn/rded --teacher resnet18 --method rded --real imagenet/train --ipc 10

    \b
    On four GPUs (or machines that share a disk), one process each:
      lpld-labels recover syn/in1k --teacher resnet18 --statistics in1k.safetensors --ipc 10 \\
          --device cuda:0 --part 1/4                                    (cuda:1 2/4 ...)
    """
    options = Options(**given)
    _check(options)
    options.prepare_machine()
    teacher = options.load()
    try:
        with progress_bar(f"{options.method} images") as progress:
            make = _stitch if options.method == "rded" else _recover
            summary = make(options, teacher, progress)
    except KeyboardInterrupt:
        click.echo(
            f"stopped: finished groups are safe in {options.out}; run the same command again", err=True
        )
        raise
    _show(options, summary)
    if options.html is not None and summary.complete:
        _write_page(options, options.html)
    elif options.html is not None:
        click.echo("no page yet: it comes with the last of the groups", err=True)


def _write_page(options: Options, path: Path) -> None:
    from lpld_core.image_pages import recovery_page
    from lpld_core.images.real_images import RealFolder
    from lpld_core.recover.folder import RECORD_FILE
    from lpld_labels.format.manifest import from_json

    record = from_json((options.out / RECORD_FILE).read_bytes(), where=str(options.out / RECORD_FILE))
    folders = [(options.method, RealFolder.open(options.out))]
    folders += [] if options.real is None else [("real", RealFolder.open(options.real))]
    save_html(path, recovery_page(record, folders))


def _check(options: Options) -> None:
    """Refuse options that contradict each other, before anything is loaded."""
    if options.method == "rded" and options.real is None:
        raise click.UsageError("--method rded needs --real, the folder of real images to cut up")
    if options.method == "lpld" and options.statistics_kind != "global" and options.statistics is None:
        raise click.UsageError(
            "--method lpld needs --statistics FILE (see squeeze) or --statistics-kind global"
        )
    if options.method != "lpld" and options.statistics_kind == "class":
        raise click.UsageError(f"--method {options.method} has no class statistics to match")


def _settings(options: Options, size: tuple[int, int], classes: int) -> RecoverSettings:
    """Return the preset with what was given explicitly in its place."""
    name = options.preset or ("tiny" if max(size) <= _SMALL_SIDE else "imagenet1k")
    preset: Preset = PRESETS[name]
    by_class = options.method == "lpld"
    unit_images = options.ipc if by_class else min(options.batch_size, classes)
    return RecoverSettings(
        method=options.method,
        ipc=options.ipc,
        iterations=preset.iterations if options.iterations is None else options.iterations,
        learning_rate=preset.learning_rate if options.lr is None else options.lr,
        alpha=preset.alpha if options.alpha is None else options.alpha,
        roll=preset.roll if options.roll is None else options.roll,
        size=size,
        statistics_kind=options.statistics_kind or ("class" if by_class else "global"),
        class_group=options.class_group or fitting_group(unit_images),
        batch_size=options.batch_size,
        smallest_crop=options.smallest_crop,
        first_layer_weight=options.first_layer_weight,
        seed=options.seed,
    )


def _recover(options: Options, teacher: LoadedTeacher, progress: Progress) -> RunSummary:
    from lpld_core.class_statistics.statistics import ClassStatistics
    from lpld_core.recover.folder import ImageFiles
    from lpld_core.recover.run import recover_images
    from lpld_labels.replay.image_folder import class_names

    return recover_images(
        teacher,
        options.out,
        settings=_settings(options, teacher.input_size, teacher.classes),
        statistics=None if options.statistics is None else ClassStatistics.load(options.statistics),
        class_names=None if options.real is None else class_names(options.real),
        files=ImageFiles(format=options.image_format, quality=options.quality),
        part=options.part,
        progress=progress,
    )


def _stitch(options: Options, teacher: LoadedTeacher, progress: Progress) -> RunSummary:
    from lpld_core.images.real_images import RealFolder
    from lpld_core.recover.folder import ImageFiles
    from lpld_core.recover.run import stitch_images

    return stitch_images(
        teacher,
        options.out,
        settings=RdedSettings(
            ipc=options.ipc,
            size=teacher.input_size,
            candidates=options.candidates,
            crops=options.crops,
            smallest_crop=options.smallest_crop,
            seed=options.seed,
        ),
        real=RealFolder.open(options.real or ""),
        files=ImageFiles(format=options.image_format, quality=options.quality),
        part=options.part,
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
