"""``lpld-labels verify``: is every byte, row and label of a pool as it was written?"""

from __future__ import annotations

from dataclasses import asdict

import click

from .console import human_bytes, output, print_json, progress_bar


@click.command("verify")
@click.argument("pool")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.pass_context
def command(ctx: click.Context, pool: str, as_json: bool) -> None:
    """Check that a pool is whole.

    Compares file digests and page checksums, row counts, key order, ranges, duplicates and the
    digest of every batch. Names every damaged file. Exit code 0: whole, 1: not.

    \b
    Examples:
      lpld-labels verify pools/in1k_ipc10
      lpld-labels verify pools/in1k_ipc10 --json | jq '.problems[].file'
    """
    from lpld_labels.check import check_pool

    with progress_bar("checking bytes") as progress:
        report = check_pool(pool, progress=progress)
    if as_json:
        print_json({"whole": report.whole, **asdict(report)})
    else:
        console = output()
        for problem in report.problems:
            console.print(
                f"[red]damaged[/] {problem.file}: {problem.message}", highlight=False, soft_wrap=True
            )
        verdict = "[green]whole[/]" if report.whole else f"[red]{len(report.problems)} problems[/]"
        console.print(
            f"{verdict}: {report.files} files, {human_bytes(report.bytes)}, "
            f"{report.batches} batches, {report.rows} rows checked",
            highlight=False,
        )
    ctx.exit(0 if report.whole else 1)
