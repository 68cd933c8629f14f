"""``lpld-labels export``: pools become the label folders that older trainers read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .console import human_bytes, output, print_json
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_labels.foreign.exporters import ExportReport

FORMATS = ("sre2l", "lpld", "lpqld", "gvbsm", "fkd")


@click.command("export")
@click.argument("pool")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--format", "label_format", required=True, type=click.Choice(FORMATS), help="Who shall read the folder."
)
@click.option("--top-k", type=click.IntRange(1), help="LPQLD, FKD: keep only the K largest labels of a row.")
@click.option(
    "--drop-incomplete", is_flag=True, help="LPLD: leave out short batches of a pool that is not a whole run."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(
    pool: str, out: Path, label_format: str, top_k: int | None, drop_incomplete: bool, as_json: bool
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
    from lpld_labels.foreign.exporters import ExportOptions, export_pool
    from lpld_labels.pool.reader import PoolReader

    options = ExportOptions(top_k=top_k, drop_incomplete=drop_incomplete)
    with PoolReader(pool) as reader, progress_bar("exporting batches") as progress:
        report = export_pool(reader, out, label_format=label_format, options=options, progress=progress)
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
    console = output()
    console.print(
        f"{report.batches} batches, {report.rows} rows, {human_bytes(report.bytes)} "
        f"written to {report.folder} as {report.format}",
        highlight=False,
        soft_wrap=True,
    )
