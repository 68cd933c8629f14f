"""``lpld-labels build``: label an image folder with a teacher."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_core.relabel.settings import BuildSettings
from lpld_core.train.presets import preset_named
from lpld_labels.inspect.text import human_bytes

from .common import (
    FOLDER,
    json_option,
    look_over,
    out_argument,
    overwrite_option,
    preset_option,
    quiet,
    says_if_finished,
)
from .console import facts_table, print_json, print_line, stdout_console
from .groups import EngineOptions, TeacherOptions, check_device
from .options import settings_options, take
from .progress import human_seconds, progress_bar

if TYPE_CHECKING:
    from lpld_core.relabel.build import BuildResult
    from lpld_labels.exec.job import Executor
    from lpld_labels.format.manifest import Manifest


@click.command("build")
@click.argument("images", type=FOLDER)
@out_argument
@settings_options(TeacherOptions)
@preset_option(without="imagenet1k")
@click.option(
    "--like",
    type=click.Path(),
    metavar="POOL",
    help="Label as POOL was labelled; its pool.json is enough. Other options replace parts of it.",
)
@settings_options(BuildSettings, preset=preset_named(None).label)
@settings_options(EngineOptions)
@click.option("--dry-run", is_flag=True, help="Try one batch and print what the whole would cost.")
@overwrite_option
@json_option("text")
def command(
    images: Path,
    out: str,
    preset: str | None,
    like: str | None,
    dry_run: bool,
    overwrite: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Label the image folder IMAGES (one directory per class) and write the pool OUT.

    Run the same command again after a crash or Ctrl-C to resume. Run it with a smaller --ratio to grow a
    pool: only the difference is labelled. Two views are labelled in memory before anything is written, so
    invalid settings fail at once.

    EXIF orientation is not applied. 16-bit samples are scaled to 8 bits; floating-point and 32-bit samples
    are refused. Files without an image extension are skipped and listed; hidden folders and __MACOSX are no
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
      lpld-labels build syn/in1k_ipc10 pools/in1k --teacher resnet18 --device cuda \\
          --engine ray --ray-address 10.0.0.1:6379 --gpus-per-task 1
      lpld-labels build syn/in1k_ipc10 pools/whole --teacher resnet18 --ratio 40 --pack

    \b
    What it would cost, and what it costs on one machine, a Slurm array and a Ray cluster: docs/clusters.md
      lpld-labels build syn/in1k_ipc10 pools/in1k --teacher resnet18 --dry-run

    \b
    The labels of a pool again, or from 40x to 20x; its pool.json, images and teacher are enough:
      lpld-labels build syn/in1k_ipc10 pools/again --like published/pool.json
      lpld-labels build syn/in1k_ipc10 pools/in1k_20x --like pools/in1k_40x --ratio 20

    \b
    On three machines that share a disk; the last one to finish publishes:
      lpld-labels build syn pools/in1k --teacher resnet18 --part 1/3     (2/3, 3/3)
    """
    like_pool = None if like is None else _read_manifest(like)
    base = preset_named(preset).label
    if like_pool is not None:
        from lpld_core.relabel.build import settings_like

        if preset is not None:
            raise click.UsageError("--like is a preset of its own: give one of --like and --preset")
        base = settings_like(like_pool, where=like or "")
    workers = take(EngineOptions, given)
    changed = any(given[name] not in (None, ()) for name in _DECIDING)
    own_teachers = bool(given["teachers"])
    teachers = take(TeacherOptions, given).choices(base.teachers)
    settings = take(BuildSettings, _machine_defaults(given, base, workers), base=base, teachers=teachers)
    _check(images, out, settings, workers, overwrite=overwrite)
    if dry_run:
        look_over(images)
        _show_dry_run(images, out, settings, workers, as_json=as_json)
        return

    from lpld_labels.format.schema import MANIFEST_FILE
    from lpld_labels.transforms.remote_output import destination

    follow = None if own_teachers else like_pool
    try:
        with (
            workers.opened() as engine,
            destination(out, overwrite=overwrite, extend=True) as path,
            says_if_finished(path / MANIFEST_FILE),
        ):
            classes = len(look_over(images))
            result = _build(images, path, settings, engine, follow, overwrite=overwrite)
    except KeyboardInterrupt:
        print_line(f"stopped: finished batches are safe in {out}; run the same command again", err=True)
        raise
    same = None
    if like_pool is not None and result.manifest is not None:
        same = _compare(result.manifest, like_pool, like or "", changed=changed)
    _show(out, result, classes, same, as_json)


_DECIDING = (
    *("teachers", "size", "mean", "std", "epochs", "batch_size", "ratio", "seed", "crop_scale", "flip"),
    *("mix", "cutout_fraction", "patch_grid", "resize", "replayable_by", "codec", "amp"),
)
"""Options that decide a pool's content."""


def _read_manifest(where: str) -> Manifest:
    from lpld_labels.pool.pool_files import manifest_of

    return manifest_of(where)


def _machine_defaults(given: dict[str, Any], base: BuildSettings, workers: EngineOptions) -> dict[str, Any]:
    """Fill in what follows from other options: threads, workers, resize code."""
    cores = os.cpu_count() or 1
    if given["workers"] is None and (given["device"] or base.device) != "cpu":
        given["workers"] = min(8, cores)
    if given["threads"] is None and base.threads is None:
        given["threads"] = workers.threads or max(1, cores // (workers.jobs or 1))
    if given["replayable_by"] is not None and given["resize"] is None:
        given["resize"] = "pil"
    return given


def _check(
    images: Path, out: str, settings: BuildSettings, workers: EngineOptions, *, overwrite: bool
) -> None:
    """Refuse options that contradict each other, before anything is loaded."""
    from lpld_labels.io.addresses import is_address
    from lpld_labels.transforms.outputs import require_apart

    if workers.engine == "local":
        check_device(settings.device)
    if overwrite and settings.part is not None:
        raise click.UsageError("--overwrite is for a whole build: it does not go with --part")
    if is_address(out) and settings.part is not None:
        raise click.UsageError("parts are gathered in a directory that all share: --part takes no address")
    workers.require_shared(out)
    caches = [] if settings.image_cache is None else [settings.image_cache]
    require_apart(out, images, *caches)
    for cache in caches:
        require_apart(cache, images)


def _build(
    images: Path,
    out: Path,
    settings: BuildSettings,
    engine: Executor,
    like: Manifest | None,
    *,
    overwrite: bool,
) -> BuildResult:
    """Scan, load, label, publish. like: whose teachers these must be."""
    from lpld_core.relabel.build import Build, run_build
    from lpld_core.relabel.verify_teacher import wrong_teachers
    from lpld_labels.errors import InvalidArgumentError

    # Where others label, this machine only tries one batch, and may be without their devices.
    device = None if engine.on_this_machine else "cpu"
    with progress_bar("reading images") as progress:
        build = Build.prepare(images, out, settings, device=device, image_progress=progress)
    if like is not None and (problems := wrong_teachers(like.header, build.ensemble)):
        raise InvalidArgumentError(
            problems[0],
            hint="give the pool's weights (--teacher-weights), or another --teacher on purpose",
        )
    count, batch_size = len(build.table), settings.batch_size
    if count < batch_size:
        click.echo(
            f"warning: {count} images do not fill a batch of {batch_size}, so every batch is "
            f"incomplete, and pruning leaves such batches out; --batch-size {count} makes them complete",
            err=True,
        )
    with progress_bar("labelling batches") as progress:
        return run_build(build, engine, overwrite=overwrite, progress=progress)


def _compare(manifest: Manifest, like: Manifest, where: str, *, changed: bool) -> bool:
    """Return whether the pool that was followed has the same content, and say so."""
    same = manifest.content_digest == like.content_digest
    operations = [step.operation for step in like.header.lineage]
    builds = [number for number, name in enumerate(operations) if name == "build"]
    steps = operations[builds[-1] + 1 :]
    if quiet():
        return same
    if same:
        click.echo(f"the content is that of {where}", err=True)
    elif steps:
        click.echo(
            f"note: after it was built, {where} went through {', '.join(steps)}; "
            "inspect --recipe prints these commands",
            err=True,
        )
    elif not changed:
        click.echo(
            f"warning: the content is not that of {where}: other images, or another machine or "
            "other libraries, whose sums round otherwise",
            err=True,
        )
    return same


def _show_dry_run(
    images: Path, out: str, settings: BuildSettings, workers: EngineOptions, *, as_json: bool
) -> None:
    """Label one batch and print what all of them will cost; write nothing."""
    from lpld_core.relabel.build import Build
    from lpld_core.relabel.preflight import dry_run
    from lpld_labels.transforms.remote_output import gathered_at

    device = None if workers.engine == "local" else "cpu"
    count = workers.jobs or 1
    with progress_bar("reading images") as progress:
        build = Build.prepare(images, gathered_at(out), settings, device=device, image_progress=progress)
    cost, trial = dry_run(build.source, build.ensemble, build.wanted)
    seconds = trial.row_seconds * cost.views / count
    if as_json:
        print_json(
            {
                "images": str(images),
                "pool": out,
                **asdict(cost),
                "workers": count,
                "trial_views": trial.rows,
                "trial_seconds": round(trial.row_seconds * trial.rows, 4),
                "seconds": round(seconds, 1),
            }
        )
        return
    rows = {
        "batches": f"{cost.batches:,}",
        "views": f"{cost.views:,}",
        "teacher forwards": f"{cost.forwards:,} images",
        "pool": human_bytes(cost.final_bytes),
        "time": f"{human_seconds(seconds)} with {count} worker{'s' if count > 1 else ''} "
        f"of {1 / trial.row_seconds:.3g} views/s (one batch of {trial.rows} tried)",
    }
    stdout_console().print(facts_table(f"Dry run: {images} -> {out}, nothing written", rows.items()))


def _show(out: str, result: BuildResult, classes: int, same: bool | None, as_json: bool) -> None:
    from lpld_labels.pool.sizes import pool_bytes

    manifest = result.manifest
    if as_json:
        print_json(
            {
                "pool": str(out),
                "published": manifest is not None,
                "labelled_batches": result.labelled,
                "image_classes": classes,
                "batches": manifest.counts.batches if manifest else None,
                "rows": manifest.counts.rows if manifest else None,
                "bytes": pool_bytes(manifest) if manifest else None,
                "content_digest": manifest.content_digest if manifest else None,
                **({} if same is None else {"same_content_as_like": same}),
            }
        )
        return
    if manifest is None:
        stdout_console().print(
            f"labelled {result.labelled} batches; the last part publishes the pool",
            highlight=False,
        )
        return
    counts = manifest.counts
    size = human_bytes(pool_bytes(manifest))
    print_line(
        f"{out}: {counts.batches} batches, {counts.rows} labels, {size}; "
        f"content {manifest.content_digest[:16]}"
    )
