"""``lpld-labels export``: write pools as the label folders that older trainers read."""

from __future__ import annotations

from typing import Any

from lpld_labels.verbs import export

from .console import note, says_if_finished, show
from .options import verb_command


@verb_command("export", export)
def command(pool: str, out: str, as_json: bool, **given: Any) -> None:
    """\b
    Examples:
      lpld-labels export pool FKD_cutmix_fp16 --format lpld
      lpld-labels export pool labels --format lpld --json | jq '.claims[] | select(.holds | not)'
      lpld-labels export pool_40x labels_40x --format lpld
      lpld-labels export pool lpqld --format lpqld --top-k 50
    """
    with says_if_finished(out, pool=False):
        report = export(pool, out, **given)
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
