"""``lpld-labels import``: turn label folders of other programs into pools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lpld_labels.interop.settings import ImportOptions

from .console import says_if_finished, show
from .groups import ExecutorOptions
from .options import FOLDER, json_option, out_argument, overwrite_option, settings_options, take
from .progress import progress_bar

FORMATS = ("auto", "sre2l", "lpld", "lpqld", "gvbsm", "fkd")


@click.command("import")
@click.argument("source", type=FOLDER)
@out_argument
@click.option("--images", required=True, type=FOLDER, help="The labelled images, one directory per class.")
@click.option(
    "--format",
    "label_format",
    type=click.Choice(FORMATS),
    default="auto",
    show_default=True,
    help="Program that wrote the folder; auto detects it from the layout and one file.",
)
@settings_options(ExecutorOptions)
@click.option(
    "--skip-bad",
    is_flag=True,
    help="Skip damaged or missing files; they are reported and recorded in the pool.",
)
@settings_options(ImportOptions)
@overwrite_option
@json_option
def command(
    source: Path,
    out: str,
    images: Path,
    label_format: str,
    skip_bad: bool,
    overwrite: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Turn the label folder SOURCE of another program into a pool OUT.

    Files are read as data: nothing in them is executed, and torch is not needed. Labels are imported bit for
    bit; crops become the pixels the program used. The report lists what was found, what was assumed, and
    warnings; `verify --teacher` checks the assumptions.

    Run the same command again to resume after an interruption, or once a damaged file is repaired. Some files
    of finished batches are read again; if their labels differ, the import fails (--overwrite starts over).

    \b
    Formats:
      sre2l    epoch_E/batch_B.tar, no image ids (SRe2L, CDA, CV-DD, FADRM)
      lpld     the same with sampler_indices_epoch.json
      lpqld    batch_N.tar with sampler_indices_batch.json, top-k labels
      gvbsm    epoch_E/batch_B.tar with image ids in each batch, several teachers
      fkd      [[NAME/]train/]CLASS/IMAGE.tar, many crops of each image

    \b
    Examples:
      lpld-labels import FKD_cutmix_fp16 pool --images syn_data -j 8
      lpld-labels import old_labels pool --images syn_data --format sre2l --torch-era old
      lpld-labels import lpqld pool --images syn_data --classes 1000 --json > report.json
      lpld-labels import gvbsm pool --images syn --mean .5,.5,.5 --std .2,.2,.2 --ensemble average
      lpld-labels verify pool --images syn_data --teacher resnet18
    """
    from lpld_labels.interop.importing import detect_format, import_labels, require_importable
    from lpld_labels.render.images import scan_image_folder

    options = take(ImportOptions, given)
    workers = take(ExecutorOptions, given)
    workers.require_shared(out)
    require_importable(out, source, images, overwrite=overwrite)
    found = detect_format(source, label_format)
    with workers.opened() as executor, says_if_finished(out):
        with progress_bar("reading images") as progress:
            table = scan_image_folder(images, decode=False, progress=progress)
        with progress_bar("importing batches") as progress:
            report = import_labels(
                source,
                out,
                images=table,
                label_format=found,
                options=options,
                executor=executor,
                skip_bad=skip_bad,
                overwrite=overwrite,
                progress=progress,
            )
    facts = report.as_json()
    if not as_json:
        facts |= {"source": str(source), "pool": out}
    show(f"Imported {source}", facts, as_json=as_json)
