"""``lpld-labels copy``: a pool, or a part of it, from anywhere to anywhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from lpld_labels.inspect.text import human_bytes

from .common import from_lossy_option, json_option, out_argument, overwrite_option, pool_argument
from .console import facts_table, print_json, stdout_console
from .parameters import NUMBER, TEXT
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_labels.format.manifest import Manifest

    from .progress import Progress


@click.command("copy")
@pool_argument
@out_argument
@click.option("--ratio", type=NUMBER, help="Copy what random pruning by RATIO keeps; fetch no more.")
@click.option("--codec", type=TEXT, help="Store labels by another codec on the way, as encode does.")
@from_lossy_option
@overwrite_option
@json_option()
def command(
    pool: str,
    out: str,
    ratio: float | None,
    codec: str | None,
    from_lossy: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Copy POOL to OUT; both may be directories or addresses (s3://, https:// to read from, and others).

    Files that are at OUT already, digest for digest, are not sent again; every file is compared with its
    digest on arrival, and the manifest comes last. The same command goes on with an interrupted copy.
    With --ratio and --codec OUT is the pool that prune and encode would make, and only the label batches
    that it keeps are fetched.

    \b
    Examples:
      lpld-labels copy pools/in1k s3://bucket/pools/in1k
      lpld-labels copy https://example.org/pools/in1k pools/in1k
      lpld-labels copy s3://bucket/pools/in1k pools/in1k_40x --ratio 40
      lpld-labels copy s3://bucket/pools/in1k pools/small --ratio 10 --codec klt
    """
    began = time.monotonic()
    facts = (
        _copy(pool, out, overwrite)
        if ratio is None and codec is None
        else _copy_part(pool, out, ratio, codec, from_lossy=from_lossy, overwrite=overwrite)
    )
    facts["seconds"] = round(time.monotonic() - began, 3)
    if as_json:
        print_json(facts)
        return
    rows = [
        ("pool", facts["pool"]),
        ("written", f"{facts['out']}, {human_bytes(facts['bytes'])}"),
        ("content", facts["content_digest"]),
    ]
    if "sent" in facts:
        rate = human_bytes(int(facts["sent"] / max(facts["seconds"], 1e-3)))
        rows.insert(1, ("sent", f"{human_bytes(facts['sent'])} in {facts['files']} files, {rate}/s"))
        rows.insert(2, ("found there", human_bytes(facts["found"])))
    stdout_console().print(facts_table("Copy", rows))


def _copy(pool: str, out: str, overwrite: bool) -> dict[str, Any]:
    """Copy all files."""
    from lpld_labels.transforms.copying import copy_pool

    with progress_bar("copying MB") as bar:
        copied = copy_pool(pool, out, overwrite=overwrite, progress=_with_rate(bar))
    return _facts(pool, out, copied.manifest) | {
        "files": copied.files,
        "sent": copied.sent,
        "found": copied.found,
    }


def _copy_part(
    pool: str, out: str, ratio: float | None, codec: str | None, *, from_lossy: bool, overwrite: bool
) -> dict[str, Any]:
    """Write what a ratio keeps, in another codec if there is one."""
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.transforms.encode import encode_pool
    from lpld_labels.transforms.prune import PruneSettings, plan_prune, write_pruned
    from lpld_labels.transforms.settings import EncodeSettings

    with (
        PoolReader(pool, view_cache_bytes=0, open_shards=2) as reader,
        progress_bar("copying batches") as bar,
    ):
        plan = None if ratio is None else plan_prune(reader, PruneSettings(ratio=ratio))
        if codec is None and plan is not None:
            manifest = write_pruned(plan, out, overwrite=overwrite, progress=bar)
        else:
            manifest = encode_pool(
                reader,
                out,
                EncodeSettings(codec=codec or "", from_lossy=from_lossy),
                pruned=plan,
                overwrite=overwrite,
                progress=bar,
            ).manifest
    return _facts(pool, out, manifest)


def _facts(pool: str, out: str, manifest: Manifest) -> dict[str, Any]:
    from lpld_labels.io.addresses import shown
    from lpld_labels.pool.sizes import pool_bytes

    return {
        "pool": shown(pool),
        "out": shown(out),
        "bytes": pool_bytes(manifest),
        "batches": manifest.counts.batches,
        "content_digest": manifest.content_digest,
    }


class _with_rate:  # noqa: N801  # used as a function
    """Progress in megabytes, with how many a second."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._began = time.monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._first is None:
            # What was there already says nothing of the rate.
            self._first = done
        seconds = time.monotonic() - self._began
        if seconds > 0:
            self._bar.note(f"{human_bytes(int((done - self._first) / seconds))}/s")
        self._bar(done // 1_000_000, max(1, total // 1_000_000))
