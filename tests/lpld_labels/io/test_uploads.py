"""Large files: sent in parts, fetched in pieces, and never held as a whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lpld_labels.errors import PoolConflictError, PoolCorruptError, StoreError
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.manifest import FileEntry
from lpld_labels.inspect.check import check_pool
from lpld_labels.io import remote
from lpld_labels.io.remote import RemoteStore
from lpld_labels.pool.pool_files import PoolFiles
from lpld_labels.transforms.copy import copy_pool
from lpld_labels.transforms.remote_output import send_pool
from tests.lpld_labels.io.pools import content, small_pool
from tests.servers.proxy import Proxy
from tests.servers.rules import Rule

PART = 5 * 1024 * 1024
"""S3 takes no smaller one, but for the last."""
DATA = bytes(range(251)) * 50_000
DIGEST = bytes_digest(DATA)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PART_BYTES", PART)
    monkeypatch.setattr(remote, "PIECE_BYTES", 100_000)


def pieces(data: bytes = DATA) -> Iterator[bytes]:
    for start in range(0, len(data), 1_000_000):
        yield data[start : start + 1_000_000]


def test_parts_arrive_as_one_file_with_its_digest(bucket: str, s3_proxy: Proxy) -> None:
    store = RemoteStore(f"{bucket}/pool")
    s3_proxy.behave(
        Rule(harm="fail", match="partNumber=2", times=1), Rule(harm="corrupt", match="partNumber=1", times=1)
    )
    store.send("file", len(DATA), pieces(), digest=DIGEST)
    traffic = s3_proxy.traffic()
    assert {"1", "2", "3"} == {
        path.partition("partNumber=")[2][0] for method, path, _ in traffic.asked if "partNumber" in path
    }
    assert traffic.harmed >= 1
    assert store.read("file") == DATA
    assert store.digest("file") == DIGEST
    assert store.unfinished() == []


def test_a_failed_upload_leaves_what_was_there(bucket: str, s3_proxy: Proxy) -> None:
    store = RemoteStore(f"{bucket}/pool")
    store.put("file", b"old")

    def broken() -> Iterator[bytes]:
        yield from pieces()
        raise PoolCorruptError("not the right bytes")

    with pytest.raises(PoolCorruptError):
        store.send("file", len(DATA), broken(), digest=DIGEST)
    s3_proxy.behave(Rule(harm="fail", match="partNumber=3"))
    with pytest.raises(StoreError, match="tried 6 times"):
        store.send("file", len(DATA), pieces(), digest=DIGEST)
    assert store.read("file") == b"old"
    assert store.unfinished() == []


def test_other_stores_are_written_piece_by_piece() -> None:
    store = RemoteStore("memory://bucket/pool")
    store.send("file", len(DATA), pieces(), digest=DIGEST)
    assert store.read("file") == DATA


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A pool with a shard of several parts."""
    return small_pool(tmp_path / "large", codec="f16:plain", shards=1, epochs=24, classes=1000, rows=64)


def test_pools_of_large_shards_come_and_go(large: Path, bucket: str, s3_proxy: Proxy, tmp_path: Path) -> None:
    address = f"{bucket}/pool"
    store = RemoteStore(address)
    # What a killed copy leaves goes when the pool is there.
    store.call("labels/x.parquet", "create_multipart_upload")
    assert len(store.unfinished()) == 1
    copy_pool(large, address)
    assert any("partNumber=2" in path for _, path, _ in s3_proxy.traffic().asked)
    assert store.unfinished() == []
    assert copy_pool(large, address).files == 0
    s3_proxy.behave(Rule(harm="corrupt", match="labels/", times=1))
    copy_pool(address, tmp_path / "back")
    assert s3_proxy.traffic().harmed == 1
    assert content(tmp_path / "back") == content(large)
    s3_proxy.behave(Rule(harm="corrupt", match="pool/labels/", method="GET", times=1))
    copy_pool(address, f"{bucket}/other")
    assert s3_proxy.traffic().harmed == 1
    assert check_pool(f"{bucket}/other").whole


def test_who_is_late_is_told_so_in_the_middle_of_an_upload(large: Path, bucket: str, tmp_path: Path) -> None:
    store = RemoteStore(f"{bucket}/pool")
    other = small_pool(tmp_path / "other")

    class Late(PoolFiles):
        """Another writer publishes before a shard of these is sent as a whole."""

        def chunks(self, entry: FileEntry) -> Iterator[bytes | pa.Buffer]:
            for number, chunk in enumerate(super().chunks(entry)):
                if entry.role == "labels" and number == 1:
                    copy_pool(other, store.address)
                yield chunk

    with pytest.raises(PoolConflictError, match="another writer has published"):
        send_pool(Late(large), store)
    assert content(store.address) == content(other)
    assert store.unfinished() == []


COPY = """
import json, sys
from pathlib import Path
import fsspec, s3fs
from lpld_labels.transforms.copy import copy_pool

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

copy_pool(sys.argv[1], sys.argv[3])
before = peak()
copy_pool(sys.argv[2], sys.argv[3] + "-large")
up = peak()
copy_pool(sys.argv[3] + "-large", sys.argv[4])
print(json.dumps([up - before, peak() - before]))
"""


@pytest.mark.timing
def test_a_large_shard_is_never_held_as_a_whole(bucket: str, tmp_path: Path) -> None:
    little = small_pool(tmp_path / "little")
    large = small_pool(tmp_path / "large", codec="f16:plain", shards=1, epochs=54, classes=4000, rows=128)
    (shard,) = (large / "labels").iterdir()
    size = shard.stat().st_size
    assert size > 200e6
    words = [sys.executable, "-c", COPY, str(little), str(large), f"{bucket}/pool", str(tmp_path / "back")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    up, down = json.loads(ended.stdout)
    assert up < 150e6, "in parts of 16 MiB, read piece by piece"
    assert down < 150e6, "in pieces of 8 MiB, four ahead"
    assert check_pool(tmp_path / "back").whole
