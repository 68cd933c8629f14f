"""Label batches per second from S3 behind a proxy that adds 50 ms to every request, and bytes of everything.

    python -m benchmarks.remote --gb 1 --json benchmarks/results/remote.json
    python -m benchmarks.remote --peers-python peers/bin/python --gb 1

Server, proxy and client share the processors of this machine. The server gives objects and ranges of them as
S3 does (`tests/servers/objects.py`). The proxy lets all answers share a link
of 1 Gbit/s; without one (`unlimited`) the processors limit everything, bare requests too.

In each round, with an empty cache: bare range requests of the same bytes; an epoch that plays every label
batch once in random order, for f16:plain and klt at .97 (of every fourth batch: decoding it takes long);
the next epoch, from the cache; and two from the local disk. All batches are compared with the local ones.
Then what `inspect`, `verify` and `prune --ratio 40` ask for. `--peers-python` names an interpreter with
MosaicML Streaming (`pip install mosaicml-streaming`), which then plays the f16 labels from the same server
over the same link.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.harness import parsed, write_json
from benchmarks.common.label_source import REAL_LABELS
from benchmarks.remote import peer
from benchmarks.remote.rounds import LATENCY, Place, Rounds, asked
from benchmarks.speed.pruning import write_large_pool
from lpld_labels.inspect.check import check_pool
from lpld_labels.inspect.summary import summarise as inspect_pool
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.prune import plan_prune, write_pruned
from lpld_labels.transforms.settings import EncodeSettings, PruneSettings
from tests.servers.files import file_server
from tests.servers.objects import object_server
from tests.servers.proxy import Proxy, proxy_of
from tests.servers.s3 import environment

BUCKET = "pools"
NAMES = {"f16:plain": "f16-plain", "klt": "klt"}
LINK = 125e6
"""Bytes per second: 1 Gbit/s."""
KLT_PART = 4


def make_pools(folder: Path, gigabytes: float) -> dict[str, PoolReader]:
    """Write the pools: real logits with noise as f16:plain, and a part of them as klt at .97."""
    plain = write_large_pool(REAL_LABELS, folder / NAMES["f16:plain"], gigabytes, "f16:plain")
    write_pruned(plan_prune(plain, PruneSettings(ratio=KLT_PART)), folder / "part")
    with PoolReader(folder / "part") as part:
        encode_pool(part, folder / NAMES["klt"], EncodeSettings(codec="klt", fidelity=0.97))
    shutil.rmtree(folder / "part")
    return {codec: PoolReader(folder / name) for codec, name in NAMES.items()}


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Proxy]:
    """Serve the buckets in a folder, through a proxy that clients find by the usual variables."""
    with object_server(folder) as port, proxy_of(port) as proxy:
        os.environ.update(environment(proxy.url))
        yield proxy


def measure(work: Path, *, gigabytes: float, rounds: int, peers_python: str | None) -> dict[str, Any]:
    """Return rates of all ways to get labels, and what single commands ask for."""
    folder = work / "served"
    pools = make_pools(folder / BUCKET, gigabytes)
    if peers_python is not None:
        peer.write(peers_python, pools["f16:plain"], work, folder / BUCKET / f"{NAMES['f16:plain']}-mds")
    results: dict[str, Any] = {
        "rounds": rounds,
        "latency_seconds": LATENCY,
        "link_bytes_per_second": LINK,
        "server": "objects",
    }
    with served(folder) as proxy:
        places = {
            codec: Place(pool=pool, bucket=BUCKET, name=NAMES[codec], proxy=proxy)
            for codec, pool in pools.items()
        }
        linked = {codec: Rounds(work, bytes_per_second=LINK) for codec in places}
        unlimited = Rounds(work, bytes_per_second=0)
        plain = places["f16:plain"]
        # Imports and the search for credentials are no part of reading.
        inspect_pool(plain.address)
        for number in range(rounds):
            for codec, place in places.items():
                _say(f"round {number + 1} of {rounds}: {codec}")
                linked[codec].measure(place)
            unlimited.measure(plain, again=False)
            if peers_python is not None:
                _say(f"round {number + 1} of {rounds}: MosaicML Streaming")
                linked["f16:plain"].measure_peer(plain, peers_python)
                unlimited.measure_peer(plain, peers_python)
        for codec, place in places.items():
            results[codec] = linked[codec].rates(place.pool)
        results["unlimited"] = unlimited.rates(plain.pool)
        _say("inspect, verify, copy")
        results["inspect"] = asked(proxy, lambda: inspect_pool(plain.address))
        results["verify"] = asked(proxy, lambda: _verify(plain.address))
    results["copy_ratio_40"] = _copy(folder, work, pools["f16:plain"])
    return results


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _verify(address: str) -> None:
    report = check_pool(address)
    if not report.whole:
        raise RuntimeError(f"{address}: {report.problems}")


def _copy(folder: Path, work: Path, pool: PoolReader) -> dict[str, Any]:
    """Fetch a fortieth of a pool over HTTP; return what it took against what came of it."""
    with file_server(folder) as server, proxy_of(server.port) as proxy:
        address = f"{proxy.url}/{BUCKET}/{NAMES['f16:plain']}"

        def copy() -> None:
            with PoolReader(address, view_cache_bytes=0, open_shards=2) as reader:
                write_pruned(plan_prune(reader, PruneSettings(ratio=40)), work / "part")

        found: dict[str, Any] = asked(proxy, copy)
    write_pruned(plan_prune(pool, PruneSettings(ratio=40)), work / "expected")
    expected = PoolReader(work / "expected").manifest
    if PoolReader(work / "part").manifest.content_digest != expected.content_digest:
        raise RuntimeError("the copy is not what pruning here gives")
    return found | {"of_result": round(found["bytes"] / pool_bytes(expected), 3)}


def show(results: dict[str, Any]) -> None:
    """Print rates and what commands ask for."""
    table = Table(title=f"Label batches per second, S3 at 50 ms, {LINK * 8 / 1e9:g} Gbit/s")
    columns = ("bare", "cold", "cached", "local", "mosaicml_streaming")
    for heading in ("", "bare requests", "cold cache", "cached", "local", "MosaicML Streaming", "bytes"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in (*NAMES, "unlimited"):
        row = results[name]
        rates = [f"{row[what]['batches_per_second']:.0f}" if what in row else "" for what in columns]
        table.add_row(name, *rates, f"{row['bytes_per_pool_byte']:.2f}x")
    Console().print(table)
    plain, klt = results["f16:plain"], results["klt"]
    Console().print(
        f"f16:plain {plain['cold_of_bare']:.0%} of bare requests (asked: 80 %), "
        f"klt {klt['cold_of_local']:.0%} of local (asked: 50 %), "
        f"from the cache {plain['cached_of_local']:.0%} and {klt['cached_of_local']:.0%} of local"
    )
    for name in ("inspect", "verify", "copy_ratio_40"):
        Console().print(name, results[name])


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write results here")
    parser.add_argument("--gb", type=float, default=1.0, help="size of the pool in f16 [default: 1]")
    parser.add_argument("--rounds", type=int, default=3, help="[default: 3]")
    parser.add_argument("--peers-python", help="interpreter that has MosaicML Streaming")
    parser.add_argument("--quick", action="store_true", help="a pool of 12 MB, one round")
    arguments = parsed(parser)
    size, rounds = (0.012, 1) if arguments.quick else (arguments.gb, arguments.rounds)
    with tempfile.TemporaryDirectory() as work:
        results = measure(Path(work), gigabytes=size, rounds=rounds, peers_python=arguments.peers_python)
    show(results)
    if arguments.json is not None:
        command = "python -m benchmarks.remote --gb 1 --json benchmarks/results/remote.json"
        write_json(arguments.json, benchmark="remote", command=command, results=results)


if __name__ == "__main__":
    main()
