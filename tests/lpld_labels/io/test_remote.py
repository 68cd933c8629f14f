import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import Result

from lpld_labels import PoolReader
from lpld_labels.errors import NotAPoolError, PoolConflictError, PoolCorruptError, StoreError
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.manifest import FileEntry
from lpld_labels.inspect.check import check_pool
from lpld_labels.inspect.summary import summarise
from lpld_labels.io import remote
from lpld_labels.io.remote import RemoteStore
from lpld_labels.pool.pool_files import PoolFiles
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.copy import copy_pool
from lpld_labels.transforms.remote_output import send_pool
from tests.factories import run_python
from tests.lpld_labels.io.pools import content, put_pool, small_pool
from tests.servers.files import FileServer
from tests.servers.proxy import Proxy
from tests.servers.rules import Harm, Rule
from tests.servers.s3 import S3Server

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_pool(tmp_path_factory.mktemp("pools") / "pool")


@pytest.fixture
def over_http(pool: Path, http: FileServer, http_proxy: Proxy, tmp_path: Path) -> str:
    http.add(pool, tmp_path.name)
    return f"{http_proxy.url}/{tmp_path.name}"


def test_batches_are_the_same_everywhere(pool: Path, over_http: str, bucket: str, s3: S3Server) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(pool), "/somewhere/pool", recursive=True)
    addresses = (over_http, put_pool(s3, bucket, pool), f"file://{pool}", "memory://somewhere/pool")
    try:
        for address in addresses:
            assert content(address) == content(pool)
    finally:
        memory.rm("/somewhere", recursive=True)


def test_inspect_reads_the_manifest_and_verify_all_once(
    pool: Path, over_http: str, http_proxy: Proxy, bucket: str, s3: S3Server, s3_proxy: Proxy, cli: Cli
) -> None:
    size, manifest = pool_bytes(PoolReader(pool).manifest), (pool / "pool.json").stat().st_size
    assert check_pool(over_http) == check_pool(pool)
    # The reader inside the check reads the manifest again.
    assert http_proxy.traffic().bytes_down == size + manifest
    address = put_pool(s3, bucket, pool)
    s3_proxy.behave()
    found = json.loads(cli("inspect", address, "--json").stdout)
    assert found["content_digest"] == summarise(pool).manifest.content_digest
    assert (s3_proxy.traffic().requests, s3_proxy.traffic().bytes_down) == (1, manifest)
    s3_proxy.behave()
    assert check_pool(address).whole
    listings = 2 * 20_000
    assert size <= s3_proxy.traffic().bytes_down < size + manifest + listings


def test_verify_names_damaged_and_unknown_files(pool: Path, bucket: str, s3: S3Server) -> None:
    address = put_pool(s3, bucket, pool)
    labels = min((pool / "labels").iterdir())
    data = labels.read_bytes()
    data = data[:100] + bytes([data[100] ^ 1]) + data[101:]
    name = bucket.removeprefix("s3://")
    s3.put(name, f"pools/small/labels/{labels.name}", data)
    s3.put(name, "pools/small/views/stranger.parquet", b"")
    found = {problem.file for problem in check_pool(address).problems}
    assert found == {f"labels/{labels.name}", "views/stranger.parquet"}


def test_one_batch_takes_its_pages_and_no_more(over_http: str, http_proxy: Proxy) -> None:
    with PoolReader(over_http) as reader:
        http_proxy.behave()
        reader.read_labels(reader.keys[5])
        traffic = http_proxy.traffic()
        assert (traffic.requests, traffic.bytes_down) == (1, reader.index.group(5).bytes)
        http_proxy.behave()
        reader.read_views(reader.keys[5])
        # The image table, a footer, a row group.
        assert http_proxy.traffic().requests == 3


@pytest.mark.parametrize("harm", ["drop", "cut", "fail", "corrupt"])
def test_a_harmed_request_is_sent_again(pool: Path, over_http: str, http_proxy: Proxy, harm: Harm) -> None:
    for part in ("labels/", "views/", "batches-", "images.parquet"):
        http_proxy.behave(Rule(harm=harm, match=part, times=1))
        assert content(over_http) == content(pool)
        assert http_proxy.traffic().harmed == 1


@pytest.mark.parametrize("harm", ["stall", "drop", "fail", "cut", "corrupt"])
def test_one_request_in_five_is_harmed(
    pool: Path, bucket: str, s3: S3Server, s3_proxy: Proxy, monkeypatch: pytest.MonkeyPatch, harm: Harm
) -> None:
    monkeypatch.setenv("LPLD_LABELS_TIMEOUT", "0.5")
    address = put_pool(s3, bucket, pool)
    s3_proxy.behave(Rule(harm=harm, every=5), stall_seconds=1.5)
    assert content(address) == content(pool)
    assert s3_proxy.traffic().harmed >= 1


def test_lasting_damage_and_absent_pools_are_reported(over_http: str, http_proxy: Proxy, bucket: str) -> None:
    http_proxy.behave(Rule(harm="corrupt", match="labels/"))
    with PoolReader(over_http) as reader, pytest.raises(PoolCorruptError, match="checksum"):
        reader.read_labels(reader.keys[0])
    for address in (f"{http_proxy.url}/nothing-here", f"{bucket}/nothing"):
        with pytest.raises(NotAPoolError, match=r"no pool\.json"):
            PoolReader(address)


def test_local_pools_import_no_clients(pool: Path) -> None:
    program = (
        "import sys; from lpld_labels import PoolReader; import lpld_labels.transforms.remote_output\n"
        "list(PoolReader(sys.argv[1]))\n"
        "kinds = ('fsspec', 's3fs', 'aiohttp', 'botocore', 'http.client')\n"
        "print([name for name in kinds if name in sys.modules])"
    )
    assert run_python(program, pool).stdout == "[]\n"


PART = 5 * 1024 * 1024  # S3 takes no smaller one, but for the last.
DATA = bytes(range(251)) * 50_000
DIGEST = bytes_digest(DATA)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, bucket: str, s3_proxy: Proxy) -> RemoteStore:
    """A store that sends and fetches in small parts, through the proxy."""
    del s3_proxy
    monkeypatch.setattr(remote, "PART_BYTES", PART)
    monkeypatch.setattr(remote, "PIECE_BYTES", 100_000)
    return RemoteStore(f"{bucket}/pool")


def pieces() -> Iterator[bytes]:
    for start in range(0, len(DATA), 1_000_000):
        yield DATA[start : start + 1_000_000]


def test_parts_arrive_as_one_file_with_its_digest(store: RemoteStore, s3_proxy: Proxy) -> None:
    s3_proxy.behave(
        Rule(harm="fail", match="partNumber=2", times=1), Rule(harm="corrupt", match="partNumber=1", times=1)
    )
    store.send("file", len(DATA), pieces(), digest=DIGEST)
    traffic = s3_proxy.traffic()
    parts = [path.partition("partNumber=")[2][0] for _, path, _ in traffic.asked if "partNumber" in path]
    assert set(parts) == {"1", "2", "3"}
    assert traffic.harmed >= 1
    assert store.read("file") == DATA
    assert store.digest("file") == DIGEST
    assert store.unfinished() == []
    other = RemoteStore("memory://bucket/pool")
    other.send("file", len(DATA), pieces(), digest=DIGEST)
    assert other.read("file") == DATA


def test_a_failed_upload_leaves_what_was_there(store: RemoteStore, s3_proxy: Proxy) -> None:
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


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    return small_pool(folder, codec="f16:plain", shards=1, epochs=24, classes=1000, rows=64)


def test_large_shards(large: Path, store: RemoteStore, bucket: str, s3_proxy: Proxy, tmp_path: Path) -> None:
    # A killed copy's upload is aborted once the pool is there.
    store.call("labels/x.parquet", "create_multipart_upload")
    assert len(store.unfinished()) == 1
    copy_pool(large, store.address)
    assert any("partNumber=2" in path for _, path, _ in s3_proxy.traffic().asked)
    assert store.unfinished() == []
    assert copy_pool(large, store.address).files == 0
    for target in (tmp_path / "back", f"{bucket}/other"):
        s3_proxy.behave(Rule(harm="corrupt", match="pool/labels/", method="GET", times=1))
        copy_pool(store.address, target)
        assert s3_proxy.traffic().harmed == 1
        assert check_pool(target).whole
    assert content(tmp_path / "back") == content(large)


def test_a_late_writer_stops_in_the_middle_of_its_upload(large: Path, store: RemoteStore, pool: Path) -> None:
    class Late(PoolFiles):
        """Another writer publishes before a shard of these is complete."""

        def chunks(self, entry: FileEntry) -> Iterator[bytes | pa.Buffer]:
            for number, chunk in enumerate(super().chunks(entry)):
                if entry.role == "labels" and number == 1:
                    copy_pool(pool, store.address)
                yield chunk

    with pytest.raises(PoolConflictError, match="another writer has published"):
        send_pool(Late(large), store)
    assert content(store.address) == content(pool)
    assert store.unfinished() == []


COPY = """
import json, sys
from pathlib import Path
import fsspec, s3fs
from lpld_labels.io import remote
from lpld_labels.transforms.copy import copy_pool

remote.PART_BYTES, remote.PIECE_BYTES = 5 << 20, 1 << 20

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
def test_a_large_shard_is_never_held_as_a_whole(pool: Path, bucket: str, tmp_path: Path) -> None:
    large = small_pool(tmp_path / "large", codec="f16:plain", shards=1, epochs=20, classes=4000, rows=128)
    (shard,) = (large / "labels").iterdir()
    assert shard.stat().st_size > 80e6
    up, down = json.loads(run_python(COPY, pool, large, f"{bucket}/pool", tmp_path / "back").stdout)
    assert up < 60e6, "in parts of 5 MiB, read piece by piece"
    assert down < 60e6, "in pieces of 1 MiB, four ahead"
    assert check_pool(tmp_path / "back").whole
