"""Loaders on pools at addresses: the same batches, fetched once, kept for the next epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lpld_labels import PoolReader
from lpld_labels.io import prefetch
from lpld_labels.io.disk_cache import CACHE_BYTES, DiskCache
from lpld_labels.loader import PoolLoader, label_loader
from lpld_labels.pool.sizes import pool_bytes
from tests.lpld_labels.io.pools import put_pool, small_pool
from tests.servers.idle import fetching, wait_until_idle
from tests.servers.proxy import Proxy
from tests.servers.rules import Rule
from tests.servers.s3 import S3Server


@pytest.fixture(scope="module", params=["f16:plain", "f16"])
def pool(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return small_pool(
        tmp_path_factory.mktemp("pools") / "pool", codec=request.param, epochs=10, classes=200, rows=32
    )


@pytest.fixture
def address(pool: Path, bucket: str, s3: S3Server, s3_proxy: Proxy) -> str:
    del s3_proxy
    return put_pool(s3, bucket, pool)


def epoch(loader: PoolLoader) -> list[torch.Tensor]:
    return [batch.labels() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_the_local_pool(
    pool: Path, address: str, s3_proxy: Proxy, tmp_path: Path, workers: int
) -> None:
    local = label_loader(pool, seed=3)
    expected = [epoch(local), epoch(local)]
    s3_proxy.behave(latency=0.02)
    loader = label_loader(address, seed=3, num_workers=workers, cache_directory=tmp_path / "cache")
    found = epoch(loader)
    assert all(torch.equal(a, b) for a, b in zip(found, expected[0], strict=True))
    size = pool_bytes(PoolReader(pool).manifest)
    assert s3_proxy.traffic().bytes_down <= 1.2 * size + 20_000  # a listing
    s3_proxy.behave()
    again = epoch(loader)
    assert all(torch.equal(a, b) for a, b in zip(again, expected[1], strict=True))
    assert s3_proxy.traffic().requests == 0


def test_a_reader_that_was_opened_before_keeps_its_cache(
    address: str, s3_proxy: Proxy, tmp_path: Path
) -> None:
    with PoolReader(address, cache=DiskCache(tmp_path / "cache", CACHE_BYTES)) as reader:
        loader = label_loader(reader)
        epoch(loader)
        s3_proxy.behave()
        epoch(loader)
    assert s3_proxy.traffic().requests == 0


def test_failing_requests_do_not_stop_training(
    pool: Path, address: str, s3_proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LPLD_LABELS_TIMEOUT", "0.5")
    expected = epoch(label_loader(pool))
    s3_proxy.behave(
        Rule(harm="corrupt", every=3),
        Rule(harm="drop", every=4),
        Rule(harm="stall", every=9),
        stall_seconds=1,
    )
    found = epoch(label_loader(address, cache_directory=tmp_path / "cache"))
    assert s3_proxy.traffic().harmed >= 2
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_loader_that_is_let_go_fetches_no_more(
    tmp_path: Path, bucket: str, s3: S3Server, s3_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "BLOCK_BYTES", 1)
    small_pool(tmp_path / "pool", codec="f16:plain", epochs=100, classes=200, rows=4)
    address = put_pool(s3, bucket, tmp_path / "pool")
    s3_proxy.behave(latency=0.2)
    loader = label_loader(address, cache_directory=tmp_path / "cache")
    next(iter(loader))
    assert fetching()
    del loader
    assert wait_until_idle(20)
    assert s3_proxy.traffic().requests < 200, "of 400 batches that nobody reads any longer"
