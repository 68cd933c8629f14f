"""``lpld-labels export``: write pools as the label folders that older trainers read."""

from __future__ import annotations

from typing import Any

import click

from lpld_labels.interop.settings import ExportOptions

from .console import note, says_if_finished, show
from .options import json_option, out_argument, overwrite_option, pool_argument, settings_options, take
from .progress import progress_bar

FORMATS = ("sre2l", "lpld", "lpqld", "gvbsm")


@click.command("export")
@pool_argument
@out_argument
@click.option(
    "--format",
    "label_format",
    required=True,
    type=click.Choice(FORMATS),
    help="Program that will read the folder.",
)
@settings_options(ExportOptions)
@overwrite_option
@json_option
def command(pool: str, out: str, label_format: str, overwrite: bool, as_json: bool, **given: Any) -> None:
    """Write POOL as a label folder OUT that older trainers load with plain torch.load.

    Any codec can be exported: labels are decoded. Importing the folder gives the same views and labels, and
    for an unpruned f16, f32 or topk pool the same content digest; sre2l and gvbsm folders cannot hold the
    header and may need import --output-size, --resize, --mean and --std. These formats number batches
    consecutively: a pruned pool comes back with new batch numbers, as another pool. sre2l, without image
    ids, takes only pools with images in the order in which such a trainer draws them; lpld and lpqld any.

    Trainers have view size, normalisation, resize code and image order built in. For each way to call the
    trainer, a list says whether it replays the labelled views exactly, and if not, why.

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
        says_if_finished(out, pool=False),
        progress_bar("exporting batches") as progress,
    ):
        report = export_pool(
            reader, out, label_format=label_format, options=options, overwrite=overwrite, progress=progress
        )
    facts = report.as_json()
    if not as_json:
        del facts["notes"], facts["claims"]
    show("Export", facts, as_json=as_json)
    for text in report.notes:
        note(f"note: {text}")
    for claim in report.claims:
        verdict = "replays exactly" if claim.holds else "does not replay exactly"
        note(f"{claim.program}, {claim.option}: {verdict}")
        for part in claim.why.split("; ") if claim.why else ():
            note(f"  {part}")
