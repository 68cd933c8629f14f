"""The cache on disk: bounded, shared, ahead of who reads."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import PoolCorruptError, PoolWriteError
from lpld_labels.io.disk_cache import DiskCache
from lpld_labels.io.prefetch import CutFile, Range, coalesced
from lpld_labels.pool.sizes import pool_bytes
from tests.lpld_labels.io.pools import small_pool
from tests.servers.files import FileServer
from tests.servers.proxy import Proxy


def held(cache: DiskCache) -> int:
    total = 0
    for path in cache.directory.glob("??/*"):
        # Those who fetch ahead may make room at any moment.
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def test_the_oldest_entries_go_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    for number in range(30):
        cache.get(f"{number:02d}entry", 100, lambda: [bytes(100)])
        assert held(cache) <= 1000
    assert cache.path("29entry").exists()
    assert not cache.path("00entry").exists()


def test_one_process_makes_an_entry_while_others_wait(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    made = []

    def make() -> list[bytes]:
        made.append(1)
        time.sleep(0.05)
        return [b"entry"]

    threads = [threading.Thread(target=cache.get, args=("name", 5, make)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert cache.path("name").read_bytes() == b"entry"


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PoolWriteError, match="the cache cannot be written"):
        DiskCache(tmp_path / "file" / "cache").get("name", 0, lambda: [b""])


def test_neighbours_are_fetched_together() -> None:
    ranges = [Range("a", 0, 10), Range("a", 12, 20), Range("a", 1_000_000, 1_000_005), Range("b", 0, 5)]
    assert list(coalesced(ranges, 100)) == [Range("a", 0, 20), *ranges[2:]]
    assert list(coalesced(ranges[:2], 15)) == ranges[:2]


def test_blocks_are_made_of_whole_parts() -> None:
    file = CutFile(digest="d", starts=np.array([4, 100, 150, 900]), stop=1000)
    assert file.blocks(0).tolist() == [4, 100, 150, 900, 1000]
    assert file.blocks(200).tolist() == [4, 150, 900, 1000]
    assert file.blocks(10_000).tolist() == [4, 1000]


@pytest.fixture
def big(tmp_path: Path, http: FileServer, http_proxy: Proxy) -> tuple[Path, str]:
    path = small_pool(tmp_path / "big", codec="f16:plain", epochs=16, classes=1000, rows=64)
    http.add(path, tmp_path.name)
    return path, f"{http_proxy.url}/{tmp_path.name}"


def test_everything_is_fetched_once_in_any_order(
    big: tuple[Path, str], http_proxy: Proxy, tmp_path: Path
) -> None:
    path, address = big
    local = PoolReader(path)
    order = np.random.default_rng(0).permutation(len(local)).tolist()
    http_proxy.behave(latency=0.05)
    with PoolReader(address, cache=DiskCache(tmp_path / "cache")) as reader:
        reader.prefetch(order * 2)
        for number in order:
            reader.advance()
            assert reader.labels_at(number).tobytes() == local.labels_at(number).tobytes()
    traffic = http_proxy.traffic()
    assert traffic.bytes_down <= 1.05 * pool_bytes(local.manifest)
    assert traffic.most_at_once > 1


def test_a_cache_smaller_than_the_pool_stays_within_its_limit(big: tuple[Path, str], tmp_path: Path) -> None:
    path, address = big
    local = PoolReader(path)
    cache = DiskCache(tmp_path / "cache", 2_000_000)
    order = np.random.default_rng(0).permutation(len(local)).tolist()
    with PoolReader(address, cache=cache) as reader:
        reader.prefetch(iter(order))
        for number in order:
            reader.advance()
            assert reader.labels_at(number).tobytes() == local.labels_at(number).tobytes()
            # What is under way may come on top.
            assert held(cache) <= 2 * cache.limit


def test_a_labels_file_that_disappears_is_reported(
    big: tuple[Path, str], http: FileServer, tmp_path: Path
) -> None:
    _, address = big
    with PoolReader(address, cache=DiskCache(tmp_path / "cache")) as reader:
        for file in (http.folder / tmp_path.name).glob("labels/*"):
            file.unlink()
        with pytest.raises(PoolCorruptError, match="file is missing"):
            reader.labels_at(0)


def test_the_next_epoch_asks_the_cache_for_nothing(
    big: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, address = big
    order = np.random.default_rng(0).permutation(len(PoolReader(path))).tolist()
    with PoolReader(address, cache=DiskCache(tmp_path / "cache")) as reader:
        reader.prefetch(order)
        first = [reader.labels_at(number).tobytes() for number in order]
        reader.prefetch([])  # ends what was begun for the first
        asked: list[str] = []
        real = DiskCache.get

        def noted(cache: DiskCache, name: str, *rest: Any) -> Path:
            # A views file, whole, may still be on its way.
            asked.extend([name] if "-" in name else [])
            return real(cache, name, *rest)

        monkeypatch.setattr(DiskCache, "get", noted)
        reader.prefetch(order)
        assert [reader.labels_at(number).tobytes() for number in order] == first
    assert asked == [], "blocks that are open were looked for again"
