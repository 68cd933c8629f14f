"""The results' section on pools in object storage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.readme.parts import Results, table

_WAYS = (
    ("bare range requests of the same bytes", "bare"),
    ("an epoch in random order, empty cache", "cold"),
    ("the next epoch, from the cache", "cached"),
    ("an epoch from the local disk", "local"),
    ("the next epoch, from the local disk", "local_again"),
    ("MosaicML Streaming, empty cache", "mosaicml_streaming"),
    ("MosaicML Streaming, its next epoch", "mosaicml_streaming_cached"),
)


def remote(results: Results) -> Iterable[str]:
    """Rates over S3, and bytes that commands fetch."""
    found = results["remote"]
    plain, klt = found["f16:plain"], found["klt"]
    yield (
        "Label batches per second from a server that speaks S3's protocol, on the same two cores, "
        f"{1e3 * found['latency_seconds']:.0f} ms added to every request. A pool of "
        f"{plain['pool_bytes'] / 1e9:.1f} GB in f16; `klt` keeps .97 and has a fourth of the batches. "
        f"Medians of {found['rounds']} rounds."
    )
    yield ""
    link = f"{found['link_bytes_per_second'] * 8 / 1e9:g} Gbit/s"
    rows = (plain, klt, found["unlimited"])
    body = [
        [way, *(_rate(row, key) for row in rows)] for way, key in _WAYS if any(key in row for row in rows)
    ]
    yield from table(("", f"`f16:plain`, {link}", f"`klt`, {link}", "`f16:plain`, no limit"), body)
    yield ""
    yield (
        f"With an empty cache, that is {plain['cold_of_bare']:.0%} of bare requests for f16 and "
        f"{klt['cold_of_local']:.0%} of the local rate for klt, with "
        f"{plain['bytes_per_pool_byte']:.2f} and {klt['bytes_per_pool_byte']:.2f} times the pool's bytes; "
        f"from the cache, {plain['cached_of_local']:.0%} and {klt['cached_of_local']:.0%} of the local rate. "
        "Without a limit on the link, the two cores that reader, server and proxy share are the limit."
    )
    yield ""
    inspect, verify, copy = found["inspect"], found["verify"], found["copy_ratio_40"]
    yield (
        f"`inspect` fetches {inspect['bytes'] / 1e3:.0f} kB (requests: {inspect['requests']}); `verify` "
        f"fetches {verify['bytes'] / plain['pool_bytes']:.2f} times the pool's bytes, `prune --ratio 40` "
        f"over HTTP {copy['of_result']:.2f} times those of its result. {results.source('remote')}"
    )


def _rate(row: dict[str, Any], key: str) -> str:
    return f"{row[key]['batches_per_second']:,.0f}" if key in row else ""
