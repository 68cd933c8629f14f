from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lpld_labels import PoolReader
from lpld_labels.errors import PoolCorruptError
from lpld_labels.io import prefetch
from lpld_labels.io.disk_cache import CACHE_BYTES, DiskCache
from lpld_labels.io.prefetch import CutFile, Range, coalesced
from lpld_labels.loader import PoolLoader, label_loader
from lpld_labels.pool.sizes import pool_bytes
from tests.lpld_labels.io.pools import put_pool, small_pool
from tests.lpld_labels.io.test_disk_cache import held
from tests.servers.files import FileServer
from tests.servers.idle import fetching, wait_until_idle
from tests.servers.proxy import Proxy
from tests.servers.rules import Rule
from tests.servers.s3 import S3Server


def test_neighbours_are_fetched_together() -> None:
    ranges = [Range("a", 0, 10), Range("a", 12, 20), Range("a", 1_000_000, 1_000_005), Range("b", 0, 5)]
    assert list(coalesced(ranges, 100)) == [Range("a", 0, 20), *ranges[2:]]
    assert list(coalesced(ranges[:2], 15)) == ranges[:2]


def test_blocks_are_made_of_whole_parts() -> None:
    file = CutFile(digest="d", starts=np.array([4, 100, 150, 900]), stop=1000)
    assert file.blocks(0).tolist() == [4, 100, 150, 900, 1000]
    assert file.blocks(200).tolist() == [4, 150, 900, 1000]
    assert file.blocks(10_000).tolist() == [4, 1000]


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_pool(tmp_path_factory.mktemp("big"), codec="f16:plain", epochs=16, classes=1000, rows=64)


@pytest.fixture
def over_http(big: Path, http: FileServer, http_proxy: Proxy, tmp_path: Path) -> str:
    http.add(big, tmp_path.name)
    return f"{http_proxy.url}/{tmp_path.name}"


ORDER = np.random.default_rng(0).permutation(64).tolist()


@pytest.mark.parametrize("limit", [CACHE_BYTES, 2_000_000])
def test_cache_is_bounded(big: Path, over_http: str, http_proxy: Proxy, tmp_path: Path, limit: int) -> None:
    local, cache = PoolReader(big), DiskCache(tmp_path / "cache", limit)
    http_proxy.behave(latency=0.05)
    with PoolReader(over_http, cache=cache) as reader:
        reader.prefetch(ORDER * 2)
        for number in ORDER:
            reader.advance()
            assert reader.labels_at(number).tobytes() == local.labels_at(number).tobytes()
            assert held(cache) <= 2 * limit, "with what is under way"
    traffic = http_proxy.traffic()
    assert traffic.most_at_once > 1
    if limit == CACHE_BYTES:
        assert traffic.bytes_down <= 1.05 * pool_bytes(local.manifest)


def test_a_labels_file_that_disappears_is_reported(over_http: str, http: FileServer, tmp_path: Path) -> None:
    with PoolReader(over_http, cache=DiskCache(tmp_path / "cache")) as reader:
        for file in (http.folder / tmp_path.name).glob("labels/*"):
            file.unlink()
        with pytest.raises(PoolCorruptError, match="file is missing"):
            reader.labels_at(0)


def test_open_blocks_are_used_again(over_http: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PoolReader(over_http, cache=DiskCache(tmp_path / "cache")) as reader:
        reader.prefetch(ORDER)
        first = [reader.labels_at(number).tobytes() for number in ORDER]
        reader.prefetch([])  # ends what was begun for the first
        asked: list[str] = []
        real = DiskCache.get

        def noted(cache: DiskCache, name: str, *rest: Any) -> Path:
            # A complete views file may still be on its way.
            asked.extend([name] if "-" in name else [])
            return real(cache, name, *rest)

        monkeypatch.setattr(DiskCache, "get", noted)
        reader.prefetch(ORDER)
        assert [reader.labels_at(number).tobytes() for number in ORDER] == first
    assert asked == [], "blocks that are open were looked for again"


@pytest.fixture(scope="module", params=["f16:plain", "f16"])
def pool(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("pool")
    return small_pool(folder, codec=request.param, epochs=10, classes=200, rows=32)


@pytest.fixture
def address(pool: Path, bucket: str, s3: S3Server, s3_proxy: Proxy) -> str:
    del s3_proxy
    return put_pool(s3, bucket, pool)


def epoch(loader: PoolLoader) -> list[torch.Tensor]:
    return [batch.labels() for batch in loader]


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_pool_fetched_once(pool: Path, address: str, s3_proxy: Proxy, tmp_path: Path, workers: int) -> None:
    local = label_loader(pool, seed=3)
    expected = [epoch(local), epoch(local)]
    s3_proxy.behave(latency=0.02)
    loader = label_loader(address, seed=3, num_workers=workers, cache_directory=tmp_path / "cache")
    assert same(epoch(loader), expected[0])
    size = pool_bytes(PoolReader(pool).manifest)
    assert s3_proxy.traffic().bytes_down <= 1.2 * size + 20_000  # a listing
    s3_proxy.behave()
    assert same(epoch(loader), expected[1])
    assert s3_proxy.traffic().requests == 0


def test_an_open_reader_keeps_its_cache_or_gets_one(address: str, s3_proxy: Proxy, tmp_path: Path) -> None:
    with PoolReader(address, cache=DiskCache(tmp_path / "cache")) as reader:
        loader = label_loader(reader)
        epoch(loader)
        s3_proxy.behave()
        epoch(loader)
    assert s3_proxy.traffic().requests == 0
    # Without a cache, prefetching the endless schedule of a small pool never came to an end.
    with PoolReader(address) as reader:
        loader = label_loader(reader, cache_directory=tmp_path / "new")
        assert len(list(loader)) == len(loader)
    assert any((tmp_path / "new").rglob("*"))


def test_failing_requests_do_not_stop_training(
    pool: Path, address: str, s3_proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LPLD_LABELS_TIMEOUT", "0.5")
    harms = Rule(harm="corrupt", every=3), Rule(harm="drop", every=4), Rule(harm="stall", every=9)
    s3_proxy.behave(*harms, stall_seconds=1)
    found = epoch(label_loader(address, cache_directory=tmp_path / "cache"))
    assert s3_proxy.traffic().harmed >= 2
    assert same(found, epoch(label_loader(pool)))


def test_prefetching_stops_when_the_loader_is_deleted(
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
    assert s3_proxy.traffic().requests < 200, "of 400 batches"
