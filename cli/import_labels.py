"""``lpld-labels import``: label folders of other programs become pools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_labels.inspect.text import human_bytes
from lpld_labels.interop.settings import ImportOptions

from .common import FOLDER, json_option, out_argument, overwrite_option, says_if_finished
from .console import facts_table, print_json, stdout_console, times_smaller
from .groups import EngineOptions
from .options import settings_options, take
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_labels.interop.importing import ImportReport

FORMATS = ("auto", "sre2l", "lpld", "lpqld", "gvbsm", "fkd")
SHOWN_HOLES = 5


@click.command("import")
@click.argument("source", type=FOLDER)
@out_argument
@click.option(
    "--images",
    required=True,
    type=FOLDER,
    help="The images that were labelled, one directory per class.",
)
@click.option(
    "--format",
    "label_format",
    type=click.Choice(FORMATS),
    default="auto",
    show_default=True,
    help="Who wrote the folder; auto finds out from its layout and one file.",
)
@settings_options(EngineOptions)
@click.option(
    "--skip-bad",
    is_flag=True,
    help="Go on without files that are damaged or missing; they are reported and recorded in the pool.",
)
@settings_options(ImportOptions)
@overwrite_option
@json_option()
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

    Files are read as data: nothing in them is executed, whatever they contain, and torch is not
    needed. Labels arrive bit for bit; crops become the pixels the program used. The report says what
    was found, what had to be assumed, and what is odd; `verify --teacher` proves the assumptions.

    Interrupted, or stopped by a damaged file that is whole again, the same command resumes. Some files of
    finished batches are read again; if their labels differ, the import is refused (--overwrite starts over).

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
    from lpld_labels.format.schema import MANIFEST_FILE
    from lpld_labels.interop.importing import detect_format, import_labels, require_importable
    from lpld_labels.render.images import scan_image_folder

    if (given["mean"] is None) != (given["std"] is None):
        raise click.UsageError("--mean and --std go together")
    options = take(ImportOptions, given)
    workers = take(EngineOptions, given)
    workers.require_shared(out)
    require_importable(out, source, images, overwrite=overwrite)
    found = detect_format(source, label_format)
    with workers.opened() as engine, says_if_finished(Path(out) / MANIFEST_FILE):
        with progress_bar("reading images") as progress:
            table = scan_image_folder(images, decode=False, progress=progress)
        with progress_bar("importing batches") as progress:
            report = import_labels(
                source,
                out,
                images=table,
                label_format=found,
                options=options,
                executor=engine,
                skip_bad=skip_bad,
                overwrite=overwrite,
                progress=progress,
            )
    if as_json:
        print_json(report.as_json())
    else:
        _show(report, source, out)


def _show(report: ImportReport, source: Path, out: str) -> None:
    size = f"{human_bytes(report.source_bytes)} -> {human_bytes(report.pool_bytes)}"
    rows = [
        ("format", report.format),
        ("batches", f"{report.batches} in {report.epochs} epochs, {report.rows} rows"),
        ("labels", f"{report.classes} classes, codec {report.codec}, {report.images} images"),
        ("bytes", f"{size}, {times_smaller(report.source_bytes / report.pool_bytes)}"),
    ]
    rows += [(what, line) for what in ("found", "assumed", "odd") for line in getattr(report, what)]
    rows += [("[red]left out[/]", f"{hole['file']}: {hole['why']}") for hole in report.holes[:SHOWN_HOLES]]
    if len(report.holes) > SHOWN_HOLES:
        rows.append(("[red]left out[/]", f"and {len(report.holes) - SHOWN_HOLES} more (see --json)"))
    rows += [("written", out), ("content", report.content_digest)]
    stdout_console().print(facts_table(f"Imported {source}", rows))
