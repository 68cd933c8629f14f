"""``lpld-labels export``: pools become the label folders that older trainers read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lpld_labels.interop.settings import ExportOptions

from .common import json_option, out_argument, overwrite_option, pool_argument, quiet, says_if_finished
from .console import show
from .options import settings_options, take
from .progress import progress_bar

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
    facts = report.as_json()
    if not as_json:
        del facts["notes"], facts["claims"]
    show("Export", facts, as_json=as_json)
    for note in () if quiet() else report.notes:
        click.echo(f"note: {note}", err=True)
    for claim in () if quiet() else report.claims:
        verdict = "replays exactly" if claim.holds else "does not replay exactly"
        click.echo(f"{claim.program}, {claim.option}: {verdict}", err=True)
        for part in claim.why.split("; ") if claim.why else ():
            click.echo(f"  {part}", err=True)
