import contextlib
import threading
from pathlib import Path

import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import PoolWriteError
from lpld_labels.io.disk_cache import DiskCache
from tests.factories import flip_bit
from tests.lpld_labels.io.pools import content, small_pool
from tests.servers.files import FileServer
from tests.servers.proxy import Proxy


def held(cache: DiskCache) -> int:
    total = 0
    for path in cache.directory.glob("??/*"):
        # A thread that prefetches may evict an entry at any moment.
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
    with pytest.raises(PoolWriteError, match="cannot write to the cache"):
        DiskCache(cache.path("29entry") / "cache").get("name", 0, lambda: [b""])


def test_one_caller_makes_an_entry_while_others_wait(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    made = []
    begun = threading.Event()

    def make() -> list[bytes]:
        made.append(1)
        begun.wait(60)
        return [b"entry"]

    threads = [threading.Thread(target=cache.get, args=("name", 5, make)) for _ in range(5)]
    for thread in threads:
        thread.start()
    begun.set()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert cache.path("name").read_bytes() == b"entry"


def test_damaged_entries_are_fetched_again(http: FileServer, http_proxy: Proxy, tmp_path: Path) -> None:
    http.add(small_pool(tmp_path / "pool"), tmp_path.name)
    expected = [labels for _, _, labels in content(tmp_path / "pool")]
    cache = DiskCache(tmp_path / "cache")

    def read() -> int:
        """Read all labels and return how many requests that took."""
        http_proxy.behave()
        with PoolReader(f"{http_proxy.url}/{tmp_path.name}", cache=cache) as reader:
            assert [batch.labels.tobytes() for batch in reader] == expected
        return http_proxy.traffic().requests

    assert read() > 1
    assert read() == 1  # the manifest
    for entry in cache.directory.glob("??/*"):
        flip_bit(entry, entry.stat().st_size // 2, bit=4)
    assert read() > 1
