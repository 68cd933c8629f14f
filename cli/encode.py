"""``lpld-labels encode``: the same pool in another codec."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_labels.transforms.settings import EncodeSettings

from .common import json_option, out_argument, overwrite_option, pool_argument, quiet, says_if_finished
from .console import show, times_smaller
from .groups import ExecutorOptions
from .options import settings_options, take
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_labels.transforms.encode import EncodeResult


@click.command("encode")
@pool_argument
@out_argument
@settings_options(EncodeSettings)
@settings_options(ExecutorOptions)
@overwrite_option
@json_option()
def command(pool: str, out: str, overwrite: bool, as_json: bool, **options: Any) -> None:
    """Write POOL to OUT with its labels stored by another codec, or its views stored otherwise.

    With --views alone, labels are copied as they are. Views that `build` drew can be left out: readers
    draw the same again.

    "Kept" is the share of the labels' information that survives at a temperature T, 1 - KL(p||q) /
    KL(p||uniform), measured on rows the codec was not fitted to. Running the same command again resumes
    an interrupted one.

    \b
    Codecs, with bytes per row and kept at T = 1 and 20 on ImageNet-1K logits (fp16: 2000 bytes):
      f16      1697   1     1      lossless, the default of every other command
      int8     1008   1     1      each row on its own grid of 256 levels; int6, int4: 64, 16
      klt       157   .991  .960   principal directions, quantised and entropy coded; argmax kept
      topk:50   109   .959  .410   the 50 largest of each row and the mass of the rest

    f16, int8 and klt serve training at every temperature, also one that changes; topk only low ones.

    \b
    Examples:
      lpld-labels encode pool small --codec klt
      lpld-labels encode pool small --codec klt --fidelity 0.99 --temperature 1
      lpld-labels encode pool small --codec klt --jobs 4
      lpld-labels encode pool half --codec int8 --ray 10.0.0.1:6379
      lpld-labels encode pool small --codec klt --views drawn
      lpld-labels encode small again --views stored
    """
    workers = take(ExecutorOptions, options)
    workers.require_shared(out)

    from lpld_labels.format.schema import MANIFEST_FILE
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.transforms.encode import encode_pool

    # Batches are visited in file order, so one block of views and one open shard at a time are enough.
    with (
        PoolReader(pool, view_cache_bytes=0, open_shards=2) as reader,
        workers.opened() as executor,
        says_if_finished(Path(out) / MANIFEST_FILE),
        progress_bar("encoding batches") as progress,
    ):
        settings = take(EncodeSettings, options)
        result = encode_pool(reader, out, settings, executor=executor, overwrite=overwrite, progress=progress)
    facts = _facts(pool, out, result)
    show(f"Encode {pool}", facts, as_json=as_json)
    if result.fidelity is not None and result.after > result.before and not quiet():
        smaller = times_smaller(result.before / result.after)
        click.echo(f"note: the new pool is larger than the old one ({smaller})", err=True)


def _facts(pool: str, out: str, result: EncodeResult) -> dict[str, Any]:
    """Return what was done as JSON values."""
    rows = max(result.manifest.counts.rows, 1)
    return {
        "pool": pool,
        "out": out,
        "codec": result.manifest.codec.name,
        "views": result.manifest.views,
        "parameters": result.manifest.codec.parameters,
        "rows": result.manifest.counts.rows,
        "bytes": {
            "before": result.before,
            "after": result.after,
            "smaller": round(result.before / result.after, 3),
            "after_per_row": round(result.after / rows, 2),
        },
        "fidelity": None if result.fidelity is None else result.fidelity.as_json(),
        "content_digest": result.manifest.content_digest,
    }
