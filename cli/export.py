"""``lpld-labels export``: write pools as the label folders that older trainers read."""

from __future__ import annotations

from typing import Any

import click

from lpld_labels.verbs import ExportCall, export

from .console import note, says_if_finished, show
from .options import call_options, given_only, json_option, out_argument, pool_argument
from .progress import CommandProgress


@click.command("export")
@pool_argument
@out_argument
@call_options(ExportCall)
@json_option
def command(pool: str, out: str, as_json: bool, **given: Any) -> None:
    """Write POOL as a label folder OUT that older trainers load with plain torch.load.

    Any codec can be exported: labels are decoded. Importing the folder gives the same views and labels, and
    for an unpruned pool the same content digest. These formats number batches consecutively: a pruned pool
    comes back with new batch numbers, as another pool. A format without image ids (sre2l) takes only pools
    with images in the order in which such a trainer draws them; lpld, lpqld and gvbsm store ids and take any.

    Trainers have view size, normalisation, resize code and image order built in. For each way to call the
    trainer, a list says whether it replays the labelled views exactly, and if not, why.

    \b
    Examples:
      lpld-labels export pool FKD_cutmix_fp16 --format lpld
      lpld-labels export pool labels --format lpld --json | jq '.claims[] | select(.holds | not)'
      lpld-labels export pool_40x labels_40x --format lpld
      lpld-labels export pool lpqld --format lpqld --top-k 50
    """
    with says_if_finished(out, pool=False):
        report = export(pool, out, progress=CommandProgress(), **given_only(given))
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
