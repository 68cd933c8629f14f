"""``lpld-labels build``: label an image folder with a teacher."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_core.training.presets import (
    DEFAULT_PRESET,
    EXPERIMENT_PRESETS,
    MIX_ALPHAS,
    LabelRecipe,
    preset_named,
)

from .common_options import FILE, FOLDER, jobs_option, json_option, overwrite_option
from .console import human_bytes, print_json, stdout_console
from .image_notes import look_over
from .outputs import says_if_finished
from .parameters import parse_part
from .progress import progress_bar
from .teacher_options import (
    check_device,
    image_cache_option,
    machine_options,
    teacher_choices,
    teacher_options,
)

if TYPE_CHECKING:
    from lpld_core.part import Part
    from lpld_core.relabel.build import BuildResult
    from lpld_core.relabel.replayable import Replayer
    from lpld_core.teachers.ensemble import TeacherChoice
    from lpld_labels.format.schema import Views


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line said; None where the preset or the machine decides."""

    images: Path
    out: Path
    teachers: tuple[str, ...]
    weights: tuple[str, ...]
    size: int | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    preset: str
    epochs: int | None
    batch_size: int | None
    ratio: float
    seed: int
    crop_scale: tuple[float, float] | None
    flip: bool | None
    mix: str | None
    cutout: float | None
    patches: int | None
    resize: str | None
    replayable_by: Replayer | None
    codec: str
    views: Views
    fewer_classes: bool
    device: str
    amp: bool
    threads: int | None
    workers: int | None
    jobs: int
    part: Part | None
    seal_seconds: float
    image_cache: Path | None
    overwrite: bool
    as_json: bool


@click.command("build")
@click.argument("images", type=FOLDER)
@click.argument("out", type=FILE)
@teacher_options
@click.option(
    "--preset",
    type=click.Choice(list(EXPERIMENT_PRESETS)),
    default=DEFAULT_PRESET,
    show_default=True,
    help="Settings of a published experiment; the options below replace parts of it.",
)
@click.option("--epochs", type=click.IntRange(1), help="Views of every image, before pruning.")
@click.option("-b", "--batch-size", type=click.IntRange(1), help="Views labelled, mixed and stored together.")
@click.option(
    "--ratio",
    type=click.FloatRange(1),
    default=1.0,
    show_default=True,
    help="Label only the 1/RATIO of the batches that random pruning would keep.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="All views and their pruning follow from it.",
)
@click.option("--crop-scale", type=float, nargs=2, metavar="LOW HIGH", help="Area share of random crops.")
@click.option("--flip/--no-flip", default=None, help="Mirror every other view.")
@click.option("--mix", type=click.Choice(list(MIX_ALPHAS)), help="Blend views with others of their batch.")
@click.option("--cutout", type=float, metavar="SHARE", help="Paint over a box with this share of the side.")
@click.option("--patches", type=click.IntRange(1, 15), metavar="N", help="Shuffle N x N patches (RDED).")
@click.option("--resize", type=click.Choice(["torch", "pil"]), help="Resize code [default: torch].")
@click.option(
    "--replayable-by",
    type=click.Choice(["sre2l", "lpld"]),
    help="Take images in the order that program's trainer draws, and resize with Pillow as it does: "
    "it then replays the exported pool exactly.",
)
@click.option(
    "--codec",
    default="f16",
    show_default=True,
    help="How labels are stored: f16, f16:plain, f32, int8, topk:50 ... (for klt, encode the pool later).",
)
@click.option(
    "--views",
    type=click.Choice(["stored", "drawn"]),
    default="stored",
    show_default=True,
    help="Keep the views in files, or let readers draw them again from the seed: smaller.",
)
@click.option(
    "--fewer-classes",
    is_flag=True,
    help="The folder may have fewer classes than the teacher; class numbers are the folder's.",
)
@machine_options
@image_cache_option
@click.option("--workers", type=click.IntRange(1), help="Threads that prepare pixels [default: 1 on a CPU].")
@jobs_option("Processes that label together; with --device cuda, spread over the GPUs.")
@click.option(
    "--part", callback=parse_part, metavar="I/N", help="Label one share and do not publish; see the examples."
)
@click.option(
    "--seal-seconds",
    type=click.FloatRange(0),
    default=45.0,
    show_default=True,
    help="How often finished work is made safe against a crash.",
)
@overwrite_option
@json_option("text")
def command(**given: Any) -> None:
    """Label the image folder IMAGES (one directory per class) and write the pool OUT.

    Run the same command again after a crash or Ctrl-C: finished batches are kept. Run it with a
    smaller --ratio to grow a pool: only the difference is labelled. Two views are labelled in memory
    before anything is written, so what cannot work is told at once.

    Images are shown as their files store them: EXIF orientation is not applied. Samples of 16 bits are
    scaled to 8; images of floating-point or 32-bit samples are refused. Files in class folders that are
    no images by their names are passed over and named; hidden folders and __MACOSX are no classes.

    \b
    Examples:
      lpld-labels build syn/in1k_ipc10 pools/in1k --teacher resnet18
      lpld-labels build syn/in1k_ipc10 pools/in1k_40x --teacher resnet18 --ratio 40
      lpld-labels build syn/tiny pools/tiny --preset tiny --teacher small-resnet18 \\
          --teacher-weights tiny_resnet18.safetensors
      lpld-labels build syn/in1k_ipc10 pools/plus --preset imagenet1k-plus
      lpld-labels build syn/in1k_ipc10 pools/in1k --teacher resnet18 --device cuda --jobs 8
      lpld-labels build syn/in1k_ipc10 pools/old --teacher resnet18 --replayable-by lpld

    \b
    On three machines that share a disk, then once more without --part to publish:
      lpld-labels build syn pools/in1k --teacher resnet18 --part 1/3     (2/3, 3/3)
      lpld-labels build syn pools/in1k --teacher resnet18
    """
    options = Options(**given)
    recipe = _recipe(options)
    choices = teacher_choices(
        options.teachers or recipe.teachers,
        options.weights,
        size=options.size,
        mean=options.mean,
        std=options.std,
    )
    check_device(options.device)
    from lpld_labels.format.schema import MANIFEST_FILE
    from lpld_labels.rewriting.engine import require_free
    from lpld_labels.rewriting.outputs import require_apart, sole_writer

    if options.overwrite and options.part is not None:
        raise click.UsageError("--overwrite is for a whole build: it does not go with --part")
    require_apart(options.out, options.images)
    require_free(options.out, lambda found: True, overwrite=options.overwrite)
    try:
        with (
            sole_writer(options.out, shared=options.part is not None),
            says_if_finished(options.out / MANIFEST_FILE),
        ):
            result, classes = _build(options, recipe, choices)
    except KeyboardInterrupt:
        click.echo(
            f"stopped: finished batches are safe in {options.out}; run the same command again", err=True
        )
        raise
    _show(options, result, classes)


def _recipe(options: Options) -> LabelRecipe:
    """Return the preset with what was given explicitly in its place."""
    wishes: dict[str, Any] = {
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "crop_scale": options.crop_scale,
        "mix": options.mix,
        "cutout_fraction": options.cutout,
        "patch_grid": options.patches,
        "resize": options.resize,
    }
    recipe = preset_named(options.preset).label
    recipe = replace(recipe, **{name: value for name, value in wishes.items() if value is not None})
    if options.replayable_by is not None and options.resize is None:
        recipe = replace(recipe, resize="pil")
    if options.flip is not None:
        recipe = replace(recipe, flip_probability=0.5 if options.flip else None)
    return recipe


def _build(options: Options, recipe: LabelRecipe, choices: list[TeacherChoice]) -> tuple[BuildResult, int]:
    """Scan, load, label, publish; return what was done and the number of image classes."""
    import torch

    from lpld_core.relabel.build import LabelJob, build_pool, check_job
    from lpld_core.relabel.jobs import Machine, label_in_processes
    from lpld_core.teachers.ensemble import load_ensemble
    from lpld_labels.codecs import codec_named
    from lpld_labels.errors import ImageMismatchError, PoolConflictError
    from lpld_labels.replay.image_folder import scan_image_folder
    from lpld_labels.rewriting.outputs import delete_pool

    codec_named(options.codec)  # a name that is none is told before the teacher is loaded
    classes = len(look_over(options.images))
    wanted_classes = None if options.fewer_classes else classes
    machine = Machine(
        device=options.device,
        amp=options.amp,
        threads=options.threads or max(1, (os.cpu_count() or 1) // options.jobs),
        workers=options.workers or (1 if options.device == "cpu" else min(8, os.cpu_count() or 1)),
    )
    torch.set_num_threads(machine.threads)
    ensemble = load_ensemble(choices, classes=wanted_classes, device=machine.device, amp=machine.amp)
    with progress_bar("reading images") as progress:
        table = scan_image_folder(options.images, progress=progress)
    job = LabelJob(
        images=options.images,
        pool=options.out,
        augmentation=recipe.augmentation(ensemble.input_size),
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        seed=options.seed,
        ratio=options.ratio,
        codec=options.codec,
        views=options.views,
        seal_seconds=options.seal_seconds,
        image_cache=options.image_cache,
        replayable_by=options.replayable_by,
    )
    check_job(job, ensemble, table)
    if len(table) < job.batch_size:
        click.echo(
            f"warning: {len(table)} images do not fill a batch of {job.batch_size}, so every batch is "
            f"incomplete, and pruning leaves such batches out; --batch-size {len(table)} makes them complete",
            err=True,
        )

    def label() -> BuildResult:
        with progress_bar("labelling batches") as progress:
            if options.jobs > 1:
                label_in_processes(
                    job,
                    choices,
                    table,
                    classes=wanted_classes,
                    jobs=options.jobs,
                    machine=machine,
                    progress=progress,
                )
            return build_pool(
                job,
                ensemble,
                table,
                part=options.part,
                publish=options.part is None,
                workers=machine.workers,
                progress=progress,
            )

    try:
        return label(), classes
    except (PoolConflictError, ImageMismatchError):
        # Told before anything is labelled: another pool is here, or unfinished work for one.
        if not options.overwrite:
            raise
    delete_pool(options.out)
    return label(), classes


def _show(options: Options, result: BuildResult, classes: int) -> None:
    from lpld_labels.pool.sizes import pool_bytes

    manifest = result.manifest
    labelled = None if options.jobs > 1 else result.labelled
    if options.as_json:
        print_json(
            {
                "pool": str(options.out),
                "published": manifest is not None,
                "labelled_batches": labelled,
                "image_classes": classes,
                "batches": manifest.counts.batches if manifest else None,
                "rows": manifest.counts.rows if manifest else None,
                "bytes": pool_bytes(manifest) if manifest else None,
                "content_digest": manifest.content_digest if manifest else None,
            }
        )
        return
    if manifest is None:
        stdout_console().print(
            f"labelled {result.labelled} batches, {result.found} were done; not published: "
            "run without --part when all parts are done",
            highlight=False,
        )
        return
    counts = manifest.counts
    size = human_bytes(pool_bytes(manifest))
    stdout_console().print(
        f"{options.out}: {counts.batches} batches, {counts.rows} labels, {size}; "
        f"content {manifest.content_digest[:16]}",
        highlight=False,
    )
