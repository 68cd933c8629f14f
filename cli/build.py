"""``lpld-labels build``: label an image folder with a teacher."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_core.train.presets import preset_named
from lpld_labels.inspect.text import human_bytes

from .build_like import Model, chosen_teachers, like_option
from .build_options import settings_options
from .common_options import FOLDER, json_option, out_argument, overwrite_option, preset_option
from .console import print_json, print_line, stdout_console
from .engine_options import EngineOptions, engine_options
from .image_notes import look_over
from .outputs import says_if_finished
from .progress import progress_bar
from .teacher_options import check_device, teacher_options

if TYPE_CHECKING:
    from lpld_core.relabel.build import BuildResult
    from lpld_core.relabel.settings import BuildSettings
    from lpld_labels.exec.job import Engine


@click.command("build")
@click.argument("images", type=FOLDER)
@out_argument
@teacher_options
@preset_option(without="imagenet1k")
@like_option
@settings_options
@engine_options("Processes that label together; with --device cuda, spread over the GPUs")
@click.option("--dry-run", is_flag=True, help="Try one batch, say what the whole would cost, write nothing.")
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
      lpld-labels build syn/in1k_ipc10 pools/in1k --teacher resnet18 --device cuda \\
          --engine ray --ray-address 10.0.0.1:6379 --gpus-per-task 1
      lpld-labels build syn/in1k_ipc10 pools/whole --teacher resnet18 --ratio 40 --pack

    \b
    What it would cost, and what it costs on one machine, a Slurm array and a Ray cluster: docs/clusters.md
      lpld-labels build syn/in1k_ipc10 pools/in1k --teacher resnet18 --dry-run

    \b
    A pool again, or from 40x to 20x, by whoever has its pool.json, its images and its teacher:
      lpld-labels build syn/in1k_ipc10 pools/again --like published/pool.json
      lpld-labels build syn/in1k_ipc10 pools/in1k_20x --like pools/in1k_40x --ratio 20

    \b
    On three machines that share a disk, then once more without --part to publish:
      lpld-labels build syn pools/in1k --teacher resnet18 --part 1/3     (2/3, 3/3)
      lpld-labels build syn pools/in1k --teacher resnet18
    """
    workers = EngineOptions.taken_from(given)
    model = None if like is None else Model.read(like)
    settings = _settings(preset, given, workers, model)
    if workers.engine == "local":
        check_device(settings.device)
    from lpld_labels.format.schema import MANIFEST_FILE
    from lpld_labels.io.addresses import is_address
    from lpld_labels.transforms.destinations import destination
    from lpld_labels.transforms.engine import require_free
    from lpld_labels.transforms.outputs import require_apart, sole_writer

    if overwrite and settings.part is not None:
        raise click.UsageError("--overwrite is for a whole build: it does not go with --part")
    if is_address(out) and settings.part is not None:
        raise click.UsageError("parts are gathered in a directory that all share: --part takes no address")
    workers.require_shared(out)
    caches = [] if settings.image_cache is None else [settings.image_cache]
    require_apart(out, images, *caches)
    for cache in caches:
        require_apart(cache, images)
    if dry_run:
        from .build_dry_run import show_dry_run

        look_over(images)
        device = None if workers.engine == "local" else "cpu"
        show_dry_run(images, out, settings, workers=workers.jobs or 1, device=device, as_json=as_json)
        return
    require_free(out, lambda found: True, overwrite=overwrite)
    try:
        with (
            workers.opened() as engine,
            destination(out, overwrite=overwrite, extend=True, engine=engine) as path,
            says_if_finished(path / MANIFEST_FILE),
        ):
            classes = len(look_over(images))
            if model is not None and model.steps:
                result = model.build(
                    path,
                    lambda place: _build(images, place, settings, engine, model, overwrite=False),
                    engine=engine,
                    overwrite=overwrite,
                )
            else:
                with sole_writer(path, shared=settings.part is not None):
                    result = _build(images, path, settings, engine, model, overwrite=overwrite)
    except KeyboardInterrupt:
        print_line(f"stopped: finished batches are safe in {out}; run the same command again", err=True)
        raise
    _show(out, result, classes, model, as_json)


def _settings(
    preset: str | None, given: dict[str, Any], workers: EngineOptions, model: Model | None
) -> BuildSettings:
    """Return the preset, or the model's settings, with what was given explicitly in its place."""
    base = preset_named(preset).label if model is None else model.settings(given)
    about = {name: given.pop(name) for name in ("teachers", "weights", "size", "mean", "std")}
    teachers = chosen_teachers(base, about, like=model is not None)
    cores = os.cpu_count() or 1
    if given["workers"] is None and given["device"] != "cpu":
        given["workers"] = min(8, cores)
    if given["threads"] is None and base.threads is None:
        given["threads"] = workers.threads or max(1, cores // (workers.jobs or 1))
    if given["replayable_by"] is not None and given["resize"] is None:
        given["resize"] = "pil"
    wishes = {name: value for name, value in given.items() if value is not None}
    return replace(base, teachers=teachers, **wishes)


def _build(
    images: Path,
    out: Path,
    settings: BuildSettings,
    engine: Engine,
    model: Model | None,
    *,
    overwrite: bool,
) -> BuildResult:
    """Scan, load, label, publish."""
    from lpld_core.relabel.build import Build
    from lpld_core.relabel.jobs import run_build

    # Where others label, this machine only rehearses, and may be without their devices.
    device = None if engine.on_this_machine else "cpu"
    with progress_bar("reading images") as progress:
        build = Build.prepare(images, out, settings, device=device, image_progress=progress)
    if model is not None:
        model.check(build.ensemble)
    count, batch_size = len(build.table), settings.batch_size
    if count < batch_size:
        click.echo(
            f"warning: {count} images do not fill a batch of {batch_size}, so every batch is "
            f"incomplete, and pruning leaves such batches out; --batch-size {count} makes them complete",
            err=True,
        )
    with progress_bar("labelling batches") as progress:
        return run_build(build, engine, overwrite=overwrite, progress=progress)


def _show(out: str, result: BuildResult, classes: int, model: Model | None, as_json: bool) -> None:
    from lpld_labels.pool.sizes import pool_bytes

    manifest = result.manifest
    same = None if model is None else model.compare(manifest)
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
                **({} if model is None else {"same_content_as_like": same}),
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
    print_line(
        f"{out}: {counts.batches} batches, {counts.rows} labels, {size}; "
        f"content {manifest.content_digest[:16]}"
    )
