"""``lpld-labels recover``: synthesise a few images per class with a teacher."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from lpld_core.recover.settings import RECOVERY_PRESETS, Method, PresetName, RecoverSettings, method_settings

from .console import look_over, says_if_stopped, show
from .groups import NetworkOptions, TorchExecutorOptions
from .options import FILE, FOLDER, PART, json_option, overwrite_option, settings_options, take
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_core.settings import Part


@click.command("recover")
@click.argument("out", type=FILE)
@settings_options(NetworkOptions)
@click.option("--method", type=click.Choice(get_args(Method)), default="lpld", show_default=True)
@click.option("--statistics", type=FILE, help="Class statistics from squeeze; required by lpld.")
@click.option(
    "--real", type=FOLDER, help="Real images: rded takes crops of them, other methods their class names."
)
@click.option(
    "--preset",
    type=click.Choice(list(RECOVERY_PRESETS)),
    help="Iterations, lr, alpha and roll of the paper's programs.  "
    "[default: tiny up to 64 px, imagenet1k above]",
)
@settings_options(RecoverSettings, unset=True)
@click.option("--part", type=PART, help="Make only this part of the images; see the examples.")
@settings_options(TorchExecutorOptions)
@overwrite_option
@json_option
def command(
    out: Path,
    method: Method,
    statistics: Path | None,
    real: Path | None,
    preset: PresetName | None,
    part: Part | None,
    overwrite: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Synthesise images from a teacher and save them as the image folder OUT.

    \b
    lpld   optimise the images of one class together towards its class statistics
    sre2l  optimise images of many classes together towards the global statistics
    cda    like sre2l, with crops that shrink from the full image
    rded   no optimisation: stitch 2 x 2 crops of real images on which the teacher is most confident

    Run the same command again after a crash or Ctrl-C to resume. OUT also gets recover.json with all settings
    and contact_sheet.png, an overview of the images. rded only resumes with the same real images or copies.

    \b
    Examples:
      lpld-labels recover syn/in1k --teacher resnet18 --statistics in1k.safetensors --ipc 10 --device cuda
      lpld-labels recover syn/sre2l --teacher resnet18 --method sre2l --ipc 10 --device cuda
      lpld-labels recover syn/plus_c --teacher resnet18 --statistics-kind global --ipc 50
      lpld-labels recover syn/rded --teacher resnet18 --method rded --real imagenet/train --ipc 10

    \b
    On four GPUs; on machines that share a disk, one part each; on a Ray cluster:
      lpld-labels recover syn/in1k --teacher resnet18 --statistics in1k.safetensors --ipc 10 \\
          --device cuda --jobs 4
      lpld-labels recover syn/in1k --teacher resnet18 --statistics in1k.safetensors --ipc 10 \\
          --device cuda --part 1/3                                      (2/3, 3/3)
      lpld-labels recover syn/in1k --teacher resnet18 --statistics in1k.safetensors --ipc 10 \\
          --device cuda --ray 10.0.0.1:6379
    """
    workers = take(TorchExecutorOptions, given)
    network = take(NetworkOptions, given)
    if method == "rded" and real is None:
        raise click.UsageError("--method rded needs --real, a folder of real images")
    if method == "lpld" and given["statistics_kind"] != "global" and statistics is None:
        raise click.UsageError(
            "--method lpld needs --statistics FILE (see squeeze) or --statistics-kind global"
        )
    if overwrite and part is not None:
        raise click.UsageError("--overwrite replaces a complete run: it does not go with --part")

    from lpld_core.images import RealFolder
    from lpld_core.recover.run import recover_images
    from lpld_core.squeeze.statistics import ClassStatistics
    from lpld_labels.transforms.outputs import require_apart

    require_apart(out, *filter(None, [real, statistics]))
    machine = network.prepare_machine(workers)
    real_folder = None
    if real is not None:
        look_over(real)
        real_folder = RealFolder.open(real)
    with says_if_stopped(out), workers.opened(device=network.device, threads=machine.threads) as executor:
        teacher = network.load(device=None if executor.on_this_machine else "cpu")
        settings = method_settings(
            method,
            size=teacher.input_size,
            classes=teacher.classes,
            preset=preset,
            **{name: value for name, value in given.items() if value is not None},
        )
        with progress_bar(f"{method} images") as progress:
            summary = recover_images(
                teacher,
                out,
                settings=settings,
                statistics=None if statistics is None else ClassStatistics.load(statistics),
                real=real_folder,
                part=part,
                overwrite=overwrite,
                executor=executor,
                machine=machine,
                progress=progress,
            )
    facts = {
        "images": str(out),
        "method": method,
        "made_images": summary.images,
        "made_groups": summary.made_groups,
        "kept_groups": summary.kept_groups,
        "seconds": round(summary.seconds, 3),
        "complete": summary.complete,
        "contact_sheet": None if summary.contact_sheet is None else str(summary.contact_sheet),
        "cross_entropy": summary.cross_entropy,
        "batchnorm_loss": summary.batchnorm,
    }
    show("Recovered images", facts, as_json=as_json)
