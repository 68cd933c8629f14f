"""``lpld-labels export``: pools become the label folders that older trainers read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_labels.inspect.text import human_bytes
from lpld_labels.interop.settings import ExportOptions

from .common import json_option, out_argument, overwrite_option, pool_argument, quiet, says_if_finished
from .console import print_json, stdout_console
from .options import settings_options, take
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_labels.interop.exporting import ExportReport

FORMATS = ("sre2l", "lpld", "lpqld", "gvbsm")


@click.command("export")
@pool_argument
@out_argument
@click.option(
    "--format", "label_format", required=True, type=click.Choice(FORMATS), help="Who shall read the folder."
)
@settings_options(ExportOptions)
@overwrite_option
@json_option("text")
def command(
    pool: str,
    out: str,
    label_format: str,
    overwrite: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Write POOL as a label folder OUT that older trainers load with plain torch.load.

    Any codec can be exported: labels are decoded. Importing an exported folder gives the same views and
    labels again, and of a whole run the same pool (content digest). These formats number batches
    through, so those of a pruned pool come back under new numbers, as another pool. A format without
    image ids (sre2l) takes only pools whose images come in the order such a trainer draws; all others go
    to lpld, lpqld or gvbsm, which store ids. Trainers have view sizes, normalisation, resize code and
    image orders built in: a list says for each way to call the trainer whether it will replay what was
    labelled, and if not why.

    \b
    Examples:
      lpld-labels export pool FKD_cutmix_fp16 --format lpld
      lpld-labels export pool labels --format lpld --json | jq '.claims[] | select(.holds | not)'
      lpld-labels export pool_40x labels_40x --format lpld
      lpld-labels export pool lpqld --format lpqld --top-k 50
    """
    options = take(ExportOptions, given)
    if options.top_k is not None and label_format != "lpqld":
        raise click.UsageError("--top-k goes with --format lpqld")

    from lpld_labels.interop.exporting import export_pool
    from lpld_labels.pool.reader import PoolReader

    with (
        PoolReader(pool) as reader,
        says_if_finished(Path(out)),
        progress_bar("exporting batches") as progress,
    ):
        report = export_pool(
            reader, out, label_format=label_format, options=options, overwrite=overwrite, progress=progress
        )
    if not quiet():
        _say_what_holds(report)
    if as_json:
        print_json(report.as_json())
    else:
        _show(report)


def _say_what_holds(report: ExportReport) -> None:
    """Print notes and claims on stderr: they are for people, whatever goes to stdout."""
    for note in report.notes:
        click.echo(f"note: {note}", err=True)
    for claim in report.claims:
        verdict = "replays exactly" if claim.holds else "does not replay exactly"
        click.echo(f"{claim.program}, {claim.option}: {verdict}", err=True)
        for part in claim.why.split("; ") if claim.why else ():
            click.echo(f"  {part}", err=True)


def _show(report: ExportReport) -> None:
    console = stdout_console()
    console.print(
        f"{report.batches} batches, {report.rows} rows, {human_bytes(report.bytes)} "
        f"written to {report.folder} as {report.format}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
