"""Label batches per second from S3 behind a proxy that adds 50 ms to every request, and bytes of everything.

    python -m benchmarks.remote --gb 1 --json benchmarks/results/remote.json
    python -m benchmarks.remote --peers-python peers/bin/python --gb 1

A real S3 server (moto's) and a plain HTTP server on this machine, the same processors as the client: rates
are to be compared with each other, not with those of a data centre. In each round, with an empty cache: bare
range requests of the same bytes; an epoch that plays every label batch once in random order, for f16:plain
and klt; the next epoch, from the cache; and two from the local disk. Batches are compared with the local
ones. Then what `inspect`, `verify` and `copy --ratio 40` ask for. `--peers-python` names an interpreter with
MosaicML Streaming (`pip install mosaicml-streaming`), which then plays the f16 labels from the same server.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.harness import parsed, summarise, write_json
from benchmarks.common.label_source import REAL_LABELS
from benchmarks.remote import bare, peer
from benchmarks.speed.pruning import write_large_pool
from lpld_labels.inspection.check import check_pool
from lpld_labels.inspection.summary import summarise as inspect_pool
from lpld_labels.loader import label_loader
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.rewriting.codec_request import CodecRequest
from lpld_labels.rewriting.encode import encode_pool
from lpld_labels.rewriting.prune import PruneSettings, prune_pool
from lpld_labels.stores.disk_cache import DiskCache
from tests.servers.files import file_server
from tests.servers.proxy import Proxy, proxy_of
from tests.servers.s3 import environment, s3_server

LATENCY = 0.05
BUCKET = "pools"
CODECS = ("f16:plain", "klt")


def make_pools(work: Path, gigabytes: float) -> dict[str, PoolReader]:
    """Write the pools: real logits with noise, as f16:plain and as klt at .97."""
    source = write_large_pool(REAL_LABELS, work / "source", gigabytes)
    plain = encode_pool(source, work / "f16:plain", CodecRequest(name="f16:plain"))
    encode_pool(source, work / "klt", CodecRequest(name="klt", fidelity=0.97))
    del plain
    shutil.rmtree(work / "source")
    return {codec: PoolReader(work / codec) for codec in CODECS}


def play(location: object, batches: int, cache: Path | None) -> list[float]:
    """Play two epochs of all label batches; return the seconds of each, opening the pool included."""
    began = time.perf_counter()
    pool = PoolReader(str(location), cache=None if cache is None else DiskCache(cache))
    loader = label_loader(pool, policy="shuffled", batches_per_epoch=batches)
    seconds = []
    for _ in range(2):
        count = sum(len(batch.labels()) > 0 for batch in loader)
        if count != batches:
            raise RuntimeError(f"{location}: {count} of {batches} batches came")
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    pool.close()
    return seconds


def check_same(local: PoolReader, address: str, cache: Path) -> None:
    """Refuse to measure what is not right."""
    here = label_loader(local, batches_per_epoch=20)
    there = label_loader(address, batches_per_epoch=20, cache_directory=cache)
    for mine, theirs in zip(here, there, strict=True):
        if mine.key != theirs.key or not bool((mine.labels() == theirs.labels()).all()):
            raise RuntimeError(f"{address}: {theirs.key} is not what it is here")


def asked(proxy: Proxy, work: Callable[[], object]) -> dict[str, float]:
    """Return what some work asks of a server, and its seconds."""
    proxy.behave(latency=LATENCY)
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    traffic = proxy.traffic()
    return {"requests": traffic.requests, "bytes": traffic.bytes_down, "seconds": round(seconds, 3)}


def measure(work: Path, *, gigabytes: float, rounds: int, peers_python: str | None) -> dict[str, Any]:
    """Return rates of all ways to get labels, and what single commands ask for."""
    pools = make_pools(work, gigabytes)
    with ExitStack() as stack:
        server = stack.enter_context(s3_server())
        proxy = stack.enter_context(proxy_of(server.port))
        os.environ.update(environment(proxy.url))
        server.make_bucket(BUCKET)
        names = {codec: codec.replace(":", "-") for codec in pools}
        for codec in pools:
            server.put_folder(BUCKET, names[codec], work / codec)
            check_same(pools[codec], f"s3://{BUCKET}/{names[codec]}", work / "check")
        if peers_python is not None:
            server.put_folder(BUCKET, "mds", peer.write(peers_python, pools["f16:plain"], work))
            shutil.rmtree(work / "mds")
        seconds = _rounds(pools, names, proxy, work, rounds, peers_python)
        results: dict[str, Any] = {codec: _rates(pools[codec], seconds[codec]) for codec in pools}
        results |= {"rounds": rounds, "latency_seconds": LATENCY}
        plain = f"s3://{BUCKET}/{names['f16:plain']}"
        results["inspect"] = asked(proxy, lambda: inspect_pool(plain))
        results["verify"] = asked(proxy, lambda: check_pool(plain))
    results["copy_ratio_40"] = _copy(work, pools["f16:plain"])
    return results


def _rounds(
    pools: dict[str, PoolReader],
    names: dict[str, str],
    proxy: Proxy,
    work: Path,
    rounds: int,
    peers_python: str | None,
) -> dict[str, dict[str, list[float]]]:
    """Return seconds of everything that is timed, by codec; and bytes of the epochs from S3."""
    found: dict[str, dict[str, list[float]]] = {codec: {} for codec in pools}

    def note(codec: str, what: str, value: float) -> None:
        found[codec].setdefault(what, []).append(value)

    for _ in range(rounds):
        for codec, pool in pools.items():
            proxy.behave(latency=LATENCY)
            began = time.perf_counter()
            bare.fetch(proxy.port, f"{BUCKET}/{names[codec]}", bare.spans(pool))
            note(codec, "bare", time.perf_counter() - began)
            proxy.behave(latency=LATENCY)
            with tempfile.TemporaryDirectory(dir=work) as cache:
                first, second = play(f"s3://{BUCKET}/{names[codec]}", len(pool), Path(cache))
            note(codec, "cold", first)
            note(codec, "cached", second)
            note(codec, "bytes", proxy.traffic().bytes_down)
            first, second = play(work / codec, len(pool), None)
            note(codec, "local", first)
            note(codec, "local_again", second)
        if peers_python is not None:
            proxy.behave(latency=LATENCY)
            with tempfile.TemporaryDirectory(dir=work) as cache:
                local = Path(cache) / "local"
                first, second = peer.read(peers_python, f"s3://{BUCKET}/mds", local, proxy.url)
            note("f16:plain", "mosaicml_streaming", first)
            note("f16:plain", "mosaicml_streaming_cached", second)
            note("f16:plain", "mosaicml_streaming_bytes", proxy.traffic().bytes_down)
    return found


def _rates(pool: PoolReader, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return batches per second with spread, and ratios of the medians."""
    rates: dict[str, Any] = {"batches": len(pool), "pool_bytes": pool_bytes(pool.manifest)}
    medians = {}
    for what, values in seconds.items():
        found = summarise(values)
        if what.endswith("bytes"):
            rates[f"{what}_per_pool_byte"] = round(found.median / pool_bytes(pool.manifest), 4)
            continue
        medians[what] = found.median
        rates[what] = {
            "batches_per_second": round(len(pool) / found.median, 1),
            "slowest": round(len(pool) / max(values), 1),
            "fastest": round(len(pool) / min(values), 1),
        }
    rates["cold_of_bare"] = round(medians["bare"] / medians["cold"], 3)
    rates["cold_of_local"] = round(medians["local"] / medians["cold"], 3)
    rates["cached_of_local"] = round(medians["local_again"] / medians["cached"], 3)
    return rates


def _copy(work: Path, pool: PoolReader) -> dict[str, Any]:
    """Fetch a fortieth of a pool over HTTP; return what it took against what came of it."""
    with file_server(work) as server, proxy_of(server.port) as proxy:

        def copy() -> None:
            with PoolReader(f"{proxy.url}/f16%3Aplain", view_cache_bytes=0, open_shards=2) as reader:
                prune_pool(reader, work / "part", PruneSettings(ratio=40))

        found: dict[str, Any] = asked(proxy, copy)
    prune_pool(pool, work / "expected", PruneSettings(ratio=40))
    expected = PoolReader(work / "expected").manifest
    if PoolReader(work / "part").manifest.content_digest != expected.content_digest:
        raise RuntimeError("the copy is not what pruning here gives")
    return found | {"of_result": round(found["bytes"] / pool_bytes(expected), 3)}


def show(results: dict[str, Any]) -> None:
    """Print rates and what commands ask for."""
    table = Table(title="Label batches per second, S3 at 50 ms")
    for heading in ("codec", "bare requests", "cold cache", "cached", "local", "MosaicML Streaming", "bytes"):
        table.add_column(heading, justify="left" if heading == "codec" else "right")
    for codec in CODECS:
        row = results[codec]
        rates = [
            f"{row[what]['batches_per_second']:.0f}" if what in row else ""
            for what in ("bare", "cold", "cached", "local", "mosaicml_streaming")
        ]
        table.add_row(codec, *rates, f"{row['bytes_per_pool_byte']:.2f}x")
    Console().print(table)
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
