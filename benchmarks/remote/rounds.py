"""Rounds of everything that is timed, over one server and one link."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.harness import summarise
from benchmarks.remote import bare, peer
from lpld_labels.format.records import BatchKey
from lpld_labels.io.disk_cache import DiskCache
from lpld_labels.loader import label_loader
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from tests.servers.proxy import Proxy

LATENCY = 0.05
Played = list[tuple[BatchKey, float]]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A pool on this machine, and the same one below a bucket of a server behind a proxy."""

    pool: PoolReader
    bucket: str
    name: str
    proxy: Proxy

    @property
    def address(self) -> str:
        return f"s3://{self.bucket}/{self.name}"


def play(location: object, cache: Path | None) -> tuple[list[float], list[Played]]:
    """Play two epochs of all label batches; return the seconds of each, opening included, and what came.

    Of each batch the key and the sum of its first label are kept, to be compared.
    """
    began = time.perf_counter()
    pool = PoolReader(str(location), cache=None if cache is None else DiskCache(cache))
    loader = label_loader(pool, sampling="shuffled", batches_per_epoch=len(pool))
    seconds, played = [], []
    for _ in range(2):
        played.append([(batch.key, float(batch.labels()[0].sum())) for batch in loader])
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    pool.close()
    return seconds, played


class Rounds:
    """Seconds, and bytes, of everything; the bytes of a link are shared by all answers under way."""

    def __init__(self, work: Path, *, bytes_per_second: float) -> None:
        self._work = work
        self._rate = bytes_per_second
        self._found: dict[str, list[float]] = {}

    def measure(self, place: Place, *, again: bool = True) -> None:
        """Time bare requests, an epoch with an empty cache and the next one, and two from this machine.

        again: False for the two with an empty cache alone.
        """
        self._behave(place)
        began = time.perf_counter()
        bare.fetch(place.proxy.port, f"{place.bucket}/{place.name}", bare.spans(place.pool))
        self._note("bare", time.perf_counter() - began)
        self._behave(place)
        with tempfile.TemporaryDirectory(dir=self._work) as cache:
            (cold, cached), there = play(place.address, Path(cache))
        self._note("cold", cold)
        self._note("bytes", place.proxy.traffic().bytes_down)
        if not again:
            return
        self._note("cached", cached)
        (local, local_again), here = play(place.pool.location, None)
        self._note("local", local)
        self._note("local_again", local_again)
        if here != there or any(len(epoch) != len(place.pool) for epoch in there):
            raise RuntimeError(f"{place.address}: other batches came than from {place.pool.location}")

    def measure_peer(self, place: Place, python: str) -> None:
        """Time MosaicML Streaming on its shards beside the pool (`name`-mds)."""
        self._behave(place)
        with tempfile.TemporaryDirectory(dir=self._work) as cache:
            first, second = peer.read(
                python,
                f"{place.address}-mds",
                Path(cache) / "local",
                place.proxy.url,
                batches=len(place.pool),
            )
        self._note("mosaicml_streaming", first)
        self._note("mosaicml_streaming_cached", second)
        self._note("mosaicml_streaming_bytes", place.proxy.traffic().bytes_down)

    def rates(self, pool: PoolReader) -> dict[str, Any]:
        """Return batches per second with spread, and ratios of the medians."""
        size = pool_bytes(pool.manifest)
        rates: dict[str, Any] = {"batches": len(pool), "pool_bytes": size}
        medians = {}
        for what, values in self._found.items():
            found = summarise(values)
            if what.endswith("bytes"):
                rates[f"{what}_per_pool_byte"] = round(found.median / size, 4)
                continue
            medians[what] = found.median
            rates[what] = {
                "batches_per_second": round(len(pool) / found.median, 1),
                "slowest": round(len(pool) / max(values), 1),
                "fastest": round(len(pool) / min(values), 1),
                "mb_per_second": round(size / found.median / 1e6, 1),
            }
        for name, one, other in (
            ("cold_of_bare", "bare", "cold"),
            ("cold_of_local", "local", "cold"),
            ("cached_of_local", "local_again", "cached"),
            ("cold_of_mosaicml_streaming", "mosaicml_streaming", "cold"),
        ):
            if {one, other} <= medians.keys():
                rates[name] = round(medians[one] / medians[other], 3)
        return rates

    def _behave(self, place: Place) -> None:
        place.proxy.behave(latency=LATENCY, bytes_per_second=self._rate)

    def _note(self, what: str, value: float) -> None:
        self._found.setdefault(what, []).append(value)


def asked(proxy: Proxy, work: Callable[[], object]) -> dict[str, float]:
    """Return what some work asks of a server, and its seconds."""
    proxy.behave(latency=LATENCY)
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    traffic = proxy.traffic()
    return {"requests": traffic.requests, "bytes": traffic.bytes_down, "seconds": round(seconds, 3)}
