"""``lpld-labels report``: an HTML report on a pool, or a comparison of several."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lpld_labels.inspect.text import human_bytes

from .console import note, print_json, stdout_console
from .options import FOLDER, json_option
from .progress import progress_bar

if TYPE_CHECKING:
    from rich.table import Table

    from lpld_labels.inspect.compare import ComparedPool, Comparison


@click.command("report")
@click.argument("pools", nargs=-1, required=True, type=click.Path(file_okay=False), metavar="POOL...")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="The HTML file, for a single pool."
)
@click.option(
    "--images",
    type=FOLDER,
    help="The labelled image folder, to show views; not needed if POOL carries its images.",
)
@json_option
def command(pools: tuple[str, ...], out: Path | None, images: Path | None, as_json: bool) -> None:
    """Write an HTML report on a pool, or compare several pools on the terminal.

    The page shows the pool's settings, size, views, labels, and warnings. Labels are read from a random
    sample, so that a pool of any size takes seconds; each chart says how many rows it covers. With images,
    and torch installed, views are shown as the student sees them. The page is one file that needs no network
    and no server.

    For several pools, the command prints the settings that differ, bytes, what codecs kept, and which pool
    was made from which.

    \b
    Examples:
      lpld-labels report pools/in1k_40x --images syn/in1k_ipc10 --out report.html
      lpld-labels report pools/*
      lpld-labels report pools/f16 pools/klt --json | jq .relations
    """
    if len(pools) > 1:
        for name, value in (("--images", images), ("--out", out)):
            if value is not None:
                raise click.UsageError(f"{name} goes with a single pool")
        _compare(pools, as_json)
    elif out is None:
        raise click.UsageError("Missing option '--out'; or give several pools.")
    else:
        _report(pools[0], out, images, as_json)


def _report(pool: str, out: Path, images: Path | None, as_json: bool) -> None:
    from lpld_labels.inspect.page import require_page_place, save_page
    from lpld_labels.inspect.report import make_report, report_page
    from lpld_labels.pool.reader import PoolReader

    from .recipe import recipe

    require_page_place(out, pool, *filter(None, [images]))
    with PoolReader(pool) as reader, progress_bar("reading a sample") as progress:
        report = make_report(reader, images=images, recipe=recipe(reader.manifest), progress=progress)
    data = report_page(report)
    save_page(out, data)
    if as_json:
        facts = {"page": str(out), "bytes": len(data), "warnings": list(report.warnings)}
        print_json(facts | {"views": len(report.cards), "rows_looked_at": len(report.sample.rows)})
        return
    for text in report.warnings:
        note(f"warning: {text}")
    click.echo(f"{out}: {human_bytes(len(data))}, {len(report.cards)} views shown")


def _compare(pools: tuple[str, ...], as_json: bool) -> None:
    from lpld_labels.inspect.compare import compare_pools
    from lpld_labels.pool.reader import PoolReader

    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(PoolReader(pool)) for pool in pools]
        progress = stack.enter_context(progress_bar("comparing pools"))
        comparison = compare_pools(readers, progress=progress)
    if as_json:
        print_json(comparison.as_json())
        return
    console = stdout_console()
    console.print(_side_by_side(comparison))
    for relation in comparison.relations:
        console.print(relation.text, highlight=False, markup=False)


def _side_by_side(comparison: Comparison) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Pools side by side", title_justify="left")
    table.add_column("")
    for pool in comparison.pools:
        table.add_column(escape(pool.name), overflow="fold")
    differing = comparison.differing
    for name, values in differing.items():
        short = [value[:12] if name == "content digest" else value for value in values]
        table.add_row(name, *map(escape, short))
    table.add_section()
    table.add_row("bytes", *(human_bytes(pool.summary.total_bytes) for pool in comparison.pools))
    table.add_row("bytes per row", *(f"{pool.summary.bytes_per_row:,.1f}" for pool in comparison.pools))
    table.add_row("kept T=1, 4, 20", *(_kept(pool) for pool in comparison.pools))
    same_top1 = [pool.fidelity and f"{pool.fidelity.top1:.1%}" for pool in comparison.pools]
    table.add_row("same top-1", *(text or "-" for text in same_top1))
    table.caption = f"{len(comparison.settings) - len(differing)} more settings are the same"
    return table


def _kept(pool: ComparedPool) -> str:
    from rich.markup import escape

    if pool.fidelity is None:
        return "-"
    shares = ", ".join(f"{100 * share:.1f} %" for share in pool.fidelity.kept.values())
    return escape(f"{shares} of {pool.measured_by}")
