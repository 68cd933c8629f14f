"""``lpld-labels compare``: pools side by side."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .common_options import json_option
from .console import command_line, human_bytes, print_json, stdout_console
from .page_options import GreedyCommand, runs_option, save_html
from .progress import progress_bar

if TYPE_CHECKING:
    from rich.table import Table

    from lpld_labels.inspect.comparison.compare import Comparison, PoolColumn


@click.command("compare", cls=GreedyCommand)
@click.argument("pools", nargs=-1, required=True, type=click.Path(file_okay=False), metavar="POOL POOL...")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write it as an HTML file.")
@runs_option
@json_option()
def command(pools: tuple[str, ...], out: Path | None, runs: tuple[Path, ...], as_json: bool) -> None:
    """Put pools side by side: what differs, bytes, fidelity, and which came from which.

    Runs are put with the pool they learned from, which their weights name.

    \b
    Examples:
      lpld-labels compare pools/f16 pools/f16_10x pools/klt
      lpld-labels compare pools/* --out compare.html --runs runs/*
      lpld-labels compare pools/f16 pools/klt --json | jq .relations
    """
    from lpld_labels.inspect.comparison.compare import compare_pools
    from lpld_labels.inspect.comparison.document import comparison_page
    from lpld_labels.inspect.pages.page import require_page_place
    from lpld_labels.inspect.report.runs import read_runs
    from lpld_labels.pool.reader import PoolReader

    if len(pools) < 2:
        raise click.UsageError("give two pools or more")
    if out is not None:
        require_page_place(out, *pools, *runs)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(PoolReader(pool)) for pool in pools]
        progress = stack.enter_context(progress_bar("comparing pools"))
        comparison = compare_pools(readers, runs=read_runs(runs), progress=progress)
    if out is not None:
        save_html(out, comparison_page(comparison, command_line("compare")))
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
    for name in comparison.pools[0].settings:
        values = differing.get(name)
        if values is not None:
            short = [value[:12] if name == "content digest" else value for value in values]
            table.add_row(name, *(escape(value) for value in short))
    table.add_section()
    table.add_row("bytes", *(human_bytes(pool.summary.bytes.total) for pool in comparison.pools))
    table.add_row("bytes per row", *(f"{pool.summary.bytes_per_row:,.1f}" for pool in comparison.pools))
    table.add_row("kept T=1, 4, 20", *(_kept(pool) for pool in comparison.pools))
    table.add_row("same top-1", *(_top1(pool) for pool in comparison.pools))
    table.add_row("students' top-1", *(_students(pool) for pool in comparison.pools))
    same = len(comparison.pools[0].settings) - len(differing)
    table.caption = f"{same} more settings are the same"
    return table


def _kept(pool: PoolColumn) -> str:
    if pool.kept is None:
        return "-"
    shares = ", ".join(f"{100 * share:.1f} %" for share in pool.kept.fidelity.kept.values())
    return f"{shares} of {pool.kept.against}"


def _top1(pool: PoolColumn) -> str:
    return "-" if pool.kept is None else f"{pool.kept.fidelity.top1:.1%}"


def _students(pool: PoolColumn) -> str:
    reached = [f"{run.top1:.1%}" for run in pool.runs if run.top1 is not None]
    return ", ".join(reached) or "-"
