"""``lpld-labels merge``: one pool of several."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_labels.inspect.text import human_bytes

from .common import json_option, out_argument, overwrite_option, says_if_finished
from .console import facts_table, print_json, stdout_console
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_labels.format.manifest import Manifest
    from lpld_labels.pool.reader import PoolReader


@click.command("merge")
@click.argument("pools", nargs=-1, required=True, metavar="POOL POOL...", type=click.Path(file_okay=False))
@out_argument
@overwrite_option
@json_option()
def command(pools: tuple[str, ...], out: str, overwrite: bool, as_json: bool) -> None:
    """Write a pool OUT that holds the batches of all POOLs, bit for bit.

    The pools must be of the same images, teachers, settings and codec, and no batch may be in two of them:
    shares of one labelling that were built apart, for instance. Running the same command again goes on with
    an interrupted one.

    \b
    Examples:
      lpld-labels merge pool_a pool_b pool
      lpld-labels merge share_1 share_2 share_3 share_4 whole --json
    """
    if len(pools) < 2:
        raise click.UsageError("give two pools or more, and then where to write")

    from lpld_labels.format.schema import MANIFEST_FILE
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.transforms.merge import merge_pools

    with ExitStack() as stack:
        # Batches are visited in file order, so one block of views and two shards at a time are enough.
        readers = [stack.enter_context(PoolReader(pool, view_cache_bytes=0, open_shards=2)) for pool in pools]
        with says_if_finished(Path(out) / MANIFEST_FILE), progress_bar("copying batches") as progress:
            manifest = merge_pools(readers, out, overwrite=overwrite, progress=progress)
        facts = _facts(readers, manifest, out)
    if as_json:
        print_json(facts)
    else:
        _show(facts)


def _facts(readers: list[PoolReader], manifest: Manifest, out: str) -> dict[str, Any]:
    """Return what was done as JSON values."""
    from lpld_labels.pool.sizes import pool_bytes

    return {
        "pools": [{"pool": reader.location, "batches": len(reader)} for reader in readers],
        "out": out,
        "batches": manifest.counts.batches,
        "rows": manifest.counts.rows,
        "bytes": pool_bytes(manifest),
        "content_digest": manifest.content_digest,
    }


def _show(facts: dict[str, Any]) -> None:
    rows = [("pool", f"{part['pool']}, {part['batches']} batches") for part in facts["pools"]]
    rows.append(("written", f"{facts['out']}, {facts['batches']} batches, {human_bytes(facts['bytes'])}"))
    rows.append(("content", facts["content_digest"]))
    stdout_console().print(facts_table("Merge", rows))
