"""``lpld-labels encode``: the same pool in another codec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .console import human_bytes, output, print_json, talk
from .parameters import ByteSize
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_labels.format.schema import Views
    from lpld_labels.rewriting.encode import EncodeResult


@click.command("encode")
@click.argument("pool")
@click.argument("out", type=click.Path())
@click.option(
    "--codec",
    help="f16, f16:plain, f32, f32:plain, int8, int6, int4, topk:K, topk:K:BITS (8, 16 or 32) or klt.",
)
@click.option(
    "--views",
    type=click.Choice(["stored", "drawn"]),
    help="Keep views in files, or leave them to be drawn when read.  [default: as POOL does]",
)
@click.option("--fidelity", type=float, help="klt: share of the information to keep.  [default: 0.97]")
@click.option("--temperature", type=float, help="klt: at which labels will be used.  [default: 20]")
@click.option("--bytes-per-row", type=float, help="klt: bytes of labels and basis per row.")
@click.option("--budget", type=ByteSize(), help="klt: bytes of the whole new pool, e.g. 300MB.")
@click.option("--step", type=float, help="klt: the quantisation step itself, in logits.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="klt: which rows are sampled."
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--force", is_flag=True, help="Accept a pool whose labels a lossy codec has changed already.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    pool: str,
    out: str,
    codec: str | None,
    views: Views | None,
    jobs: int,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write POOL to OUT with its labels stored by another codec, or its views stored otherwise.

    With --views alone, labels are copied as they are. Views that `build` drew can be left out: readers
    draw the same again.

    "Kept" is the share of the labels' information that survives at a temperature T, 1 - KL(p||q) /
    KL(p||uniform), measured on rows the codec was not fitted to. Running the same command again goes
    on with an interrupted one.

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
      lpld-labels encode pool small --codec klt --budget 300MB --jobs 4
      lpld-labels encode pool half --codec int8
      lpld-labels encode pool small --codec klt --views drawn
      lpld-labels encode small again --views stored
    """
    demands = [name for name in ("fidelity", "bytes_per_row", "budget", "step") if options[name] is not None]
    flags = [f"--{name.replace('_', '-')}" for name in demands]
    if len(demands) > 1:
        raise click.UsageError(f"give only one of {' and '.join(flags)}")
    if options["temperature"] is not None and demands == ["step"]:
        raise click.UsageError("--temperature makes no difference to --step")

    if codec is None:
        if views is None or flags or options["temperature"] is not None:
            raise click.UsageError("give --codec, or --views alone")
        _change_views(pool, out, views, jobs=jobs, as_json=as_json)
        return

    from lpld_labels.codecs import codec_kind
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.rewriting.codec_request import CodecRequest
    from lpld_labels.rewriting.encode import encode_pool

    if (flags or options["temperature"] is not None) and not codec_kind(codec).demands:
        raise click.UsageError(f"{(flags or ['--temperature'])[0]} goes with --codec klt")
    # Batches are visited in file order, so one block of views and one open shard at a time are enough.
    with (
        PoolReader(pool, view_cache_bytes=0, open_shards=2) as reader,
        progress_bar("encoding batches") as progress,
    ):
        request = CodecRequest(name=codec, **options)
        result = encode_pool(reader, out, request, views=views, jobs=jobs, force=force, progress=progress)
    facts = _facts(pool, out, result)
    if as_json:
        print_json(facts)
    else:
        _show(facts, result.codec.describe())
    if result.better is not None:
        talk().print(
            f"note: codec '{result.better}' keeps no less of these labels in no more bytes; "
            "this pool is too small, or has too few classes, for klt to pay"
        )


def _change_views(pool: str, out: str, views: Views, *, jobs: int, as_json: bool) -> None:
    """Write the pool with views stored or drawn, and say what came of it."""
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.pool.sizes import pool_bytes
    from lpld_labels.rewriting.change_views import change_views

    with (
        PoolReader(pool, view_cache_bytes=0, open_shards=2) as reader,
        progress_bar("copying batches") as progress,
    ):
        manifest = change_views(reader, out, views, jobs=jobs, progress=progress)
        before, after = pool_bytes(reader.manifest), pool_bytes(manifest)
    if as_json:
        sizes = {"before": before, "after": after, "smaller": round(before / after, 3)}
        digest = manifest.content_digest
        print_json({"pool": pool, "out": out, "views": views, "bytes": sizes, "content_digest": digest})
    else:
        output().print(f"views {views}: {human_bytes(before)} -> {human_bytes(after)}, written to {out}")


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
        "fidelity": result.fidelity.as_json(),
        "better": result.better,
        "content_digest": result.manifest.content_digest,
    }


def _show(facts: dict[str, Any], codec: str) -> None:
    from rich.table import Table

    sizes, fidelity = facts["bytes"], facts["fidelity"]
    kept = ", ".join(f"T = {temperature}: {value:.4f}" for temperature, value in fidelity["kept"].items())
    table = Table(title=f"Encode {facts['pool']}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("codec", codec)
    table.add_row(
        "bytes",
        f"{human_bytes(sizes['before'])} -> {human_bytes(sizes['after'])}, {sizes['smaller']:.3g}x; "
        f"{sizes['after_per_row']:g} per row, views {facts['views']}",
    )
    table.add_row("kept", f"{kept} (on {fidelity['rows']} rows)")
    table.add_row("top-1", f"{fidelity['top1']:.4f} of the rows have the same largest class")
    table.add_row("written", facts["out"])
    table.add_row("content", facts["content_digest"])
    output().print(table)
