"""``lpld-labels build``: label an image folder with a teacher."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_core.settings import BuildSettings
from lpld_core.train.settings import preset_named
from lpld_labels.io.addresses import is_address

from .console import look_over, says_if_finished, says_if_stopped, show
from .groups import TeacherOptions, TorchExecutorOptions
from .options import (
    FOLDER,
    json_option,
    out_argument,
    overwrite_option,
    preset_option,
    settings_options,
    take,
)
from .progress import human_seconds, progress_bar

if TYPE_CHECKING:
    from lpld_core.relabel.build import Build

_MOST_PIXEL_THREADS = 8


@click.command("build")
@click.argument("images", type=FOLDER)
@out_argument
@settings_options(TeacherOptions)
@preset_option(without="imagenet1k")
@settings_options(BuildSettings, preset=preset_named(None).label)
@settings_options(TorchExecutorOptions)
@click.option("--dry-run", is_flag=True, help="Label one batch in memory and print what the pool would cost.")
@overwrite_option
@json_option
def command(
    images: Path, out: str, preset: str | None, dry_run: bool, overwrite: bool, as_json: bool, **given: Any
) -> None:
    """Label the image folder IMAGES (one directory per class) and write the pool OUT.

    Run the same command again after a crash or Ctrl-C to resume. Run it with a smaller --ratio to grow a
    pool: only the missing batches are labelled. Two views are labelled in memory before anything is written,
    so invalid settings fail at once.

    EXIF orientation is not applied. 16-bit samples are scaled to 8 bits; floating-point and 32-bit samples
    are refused. Files without an image extension are skipped and listed; hidden folders and __MACOSX are not
    classes.

    \b
    Examples:
      lpld-labels build syn/in1k_ipc10 pools/in1k --teacher resnet18
      lpld-labels build syn/in1k_ipc10 pools/in1k_40x --teacher resnet18 --ratio 40
      lpld-labels build syn/tiny pools/tiny --preset tiny --teacher small-resnet18 \\
          --teacher-weights tiny_resnet18.safetensors
      lpld-labels build syn/in1k_ipc10 pools/plus --preset imagenet1k-plus
      lpld-labels build syn/in1k_ipc10 pools/in1k --teacher resnet18 --device cuda --jobs 8
      lpld-labels build syn/in1k_ipc10 pools/old --teacher resnet18 --replayable-by lpld
      lpld-labels build syn/in1k_ipc10 pools/in1k --teacher resnet18 --device cuda --ray 10.0.0.1:6379
      lpld-labels build syn/in1k_ipc10 pools/whole --teacher resnet18 --ratio 40 --pack

    \b
    Cost of a run in advance (docs/clusters.md: one machine, a Slurm array, a Ray cluster):
      lpld-labels build syn/in1k_ipc10 pools/in1k --teacher resnet18 --dry-run

    \b
    On three machines that share a disk; the last one to finish publishes:
      lpld-labels build syn pools/in1k --teacher resnet18 --part 1/3     (2/3, 3/3)
    """
    workers = take(TorchExecutorOptions, given)
    settings = _settings(given, preset, workers)
    if overwrite and settings.part is not None:
        raise click.UsageError("--overwrite replaces a complete pool: it does not go with --part")
    if is_address(out) and settings.part is not None:
        raise click.UsageError("parts need a shared directory: with --part, OUT cannot be an address")
    workers.check_device(settings.device)
    workers.require_shared(out)

    from lpld_core.relabel.build import run_build
    from lpld_labels.pool.sizes import pool_bytes
    from lpld_labels.transforms.outputs import require_apart
    from lpld_labels.transforms.remote_output import destination, gathered_at

    require_apart(out, images)
    classes = len(look_over(images))
    # With Ray this machine only labels the preflight's views, and may have no GPU.
    device = None if workers.ray is None else "cpu"
    if dry_run:
        _dry_run(_prepare(images, gathered_at(out), settings, device), workers.jobs or 1, as_json)
        return
    with (
        says_if_stopped(out),
        workers.opened(device=settings.device, threads=settings.threads) as executor,
        destination(out, overwrite=overwrite, extend=True) as path,
        says_if_finished(path),
    ):
        build = _prepare(images, path, settings, device)
        with progress_bar("labelling batches") as progress:
            result = run_build(build, executor, overwrite=overwrite, progress=progress)
    manifest = result.manifest
    facts = {
        "pool": out,
        "labelled_batches": result.labelled,
        "image_classes": classes,
        "published": manifest is not None,
        "batches": manifest and manifest.counts.batches,
        "rows": manifest and manifest.counts.rows,
        "bytes": manifest and pool_bytes(manifest),
        "content_digest": manifest and manifest.content_digest,
    }
    show(f"Pool of {images}", facts, as_json=as_json)
    if manifest is None and not as_json:
        click.echo("the last part publishes the pool", err=True)


def _settings(given: dict[str, Any], preset: str | None, workers: TorchExecutorOptions) -> BuildSettings:
    """Return the preset's settings, replaced by options and by defaults that follow from other options."""
    base = preset_named(preset).label
    teachers = take(TeacherOptions, given).choices(base.teachers)
    given["threads"] = threads = workers.threads_each(given["threads"])
    if given["replayable_by"] is not None and given["resize"] is None:
        given["resize"] = "pil"
    # On a CPU the teacher uses all threads.
    pixel_threads = 1 if given["device"] in (None, "cpu") else min(_MOST_PIXEL_THREADS, threads)
    return take(BuildSettings, given, base=base, teachers=teachers, workers=pixel_threads)


def _prepare(images: Path, out: Path, settings: BuildSettings, device: str | None) -> Build:
    from lpld_core.relabel.build import Build

    with progress_bar("reading images") as progress:
        build = Build.prepare(images, out, settings, device=device, image_progress=progress)
    count, batch_size = len(build.table), settings.batch_size
    if count < batch_size:
        click.echo(
            f"warning: {count} images do not fill a batch of {batch_size}: every batch is incomplete, and "
            f"pruning drops incomplete batches; --batch-size {count} makes them complete",
            err=True,
        )
    return build


def _dry_run(build: Build, workers: int, as_json: bool) -> None:
    """Label one batch in memory and print what all of them will cost."""
    from lpld_core.relabel.source import dry_run

    cost, trial = dry_run(build.source, build.ensemble, build.wanted)
    facts = {
        **asdict(cost),
        "workers": workers,
        "trial_views": trial.rows,
        "trial_seconds": round(trial.row_seconds * trial.rows, 4),
        "seconds": round(trial.row_seconds * cost.views / workers, 1),
    }
    show(f"Dry run of {build.images}, nothing written", facts, as_json=as_json)
    if not as_json:
        click.echo(f"about {human_seconds(facts['seconds'])}")
