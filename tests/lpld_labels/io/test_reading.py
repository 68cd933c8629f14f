"""Reading pools where they lie: the same batches, few requests, and nothing wrong after damage on the way."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lpld_labels import PoolReader
from lpld_labels.errors import NotAPoolError, PoolCorruptError
from lpld_labels.inspect.check import check_pool
from lpld_labels.inspect.summary import summarise
from lpld_labels.io.disk_cache import DiskCache
from lpld_labels.pool.sizes import pool_bytes
from tests.lpld_labels.io.pools import content, put_pool, small_pool
from tests.servers.files import FileServer
from tests.servers.proxy import Proxy
from tests.servers.rules import Rule
from tests.servers.s3 import S3Server


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_pool(tmp_path_factory.mktemp("pools") / "pool")


@pytest.fixture
def over_http(pool: Path, http: FileServer, http_proxy: Proxy, tmp_path: Path) -> str:
    http.add(pool, tmp_path.name)
    return f"{http_proxy.url}/{tmp_path.name}"


def test_batches_are_the_same_everywhere(pool: Path, over_http: str, bucket: str, s3: S3Server) -> None:
    expected = content(pool)
    assert content(over_http) == expected
    assert content(put_pool(s3, bucket, pool)) == expected
    assert content(f"file://{pool}") == expected


def test_other_file_systems_of_fsspec_work_too(pool: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(pool), "/somewhere/pool", recursive=True)
    try:
        assert content("memory://somewhere/pool") == content(pool)
    finally:
        memory.rm("/somewhere", recursive=True)


def test_inspect_reads_the_manifest_and_nothing_else(
    pool: Path, bucket: str, s3: S3Server, s3_proxy: Proxy, cli: Callable[..., Result]
) -> None:
    address = put_pool(s3, bucket, pool)
    s3_proxy.behave()
    result = cli("inspect", address, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["content_digest"] == summarise(pool).manifest.content_digest
    traffic = s3_proxy.traffic()
    assert traffic.requests == 1
    assert traffic.bytes_down == (pool / "pool.json").stat().st_size


def test_verify_fetches_a_pool_once(
    pool: Path, over_http: str, http_proxy: Proxy, bucket: str, s3: S3Server, s3_proxy: Proxy
) -> None:
    size = pool_bytes(PoolReader(pool).manifest)
    assert check_pool(over_http) == check_pool(pool)
    manifest = (pool / "pool.json").stat().st_size
    # Whoever opens the pool inside the check reads the manifest again.
    assert http_proxy.traffic().bytes_down == size + manifest
    address = put_pool(s3, bucket, pool)
    s3_proxy.behave()
    assert check_pool(address).whole
    listings = 2 * 20_000
    assert size <= s3_proxy.traffic().bytes_down < size + manifest + listings


def test_verify_names_what_is_damaged_elsewhere(pool: Path, bucket: str, s3: S3Server) -> None:
    address = put_pool(s3, bucket, pool)
    labels = min((pool / "labels").iterdir())
    data = bytearray(labels.read_bytes())
    data[100] ^= 1
    name = bucket.removeprefix("s3://")
    s3.put(name, f"pools/small/labels/{labels.name}", bytes(data))
    s3.put(name, "pools/small/views/stranger.parquet", b"")
    found = {problem.file for problem in check_pool(address).problems}
    assert found == {f"labels/{labels.name}", "views/stranger.parquet"}


def test_one_batch_takes_its_pages_and_no_more(pool: Path, over_http: str, http_proxy: Proxy) -> None:
    with PoolReader(over_http) as reader:
        http_proxy.behave()
        reader.read_labels(reader.keys[5])
        group = reader.index.group(5)
        traffic = http_proxy.traffic()
        assert (traffic.requests, traffic.bytes_down) == (1, group.bytes)
        http_proxy.behave()
        reader.read_views(reader.keys[5])
        # The image table, a footer, a row group.
        assert http_proxy.traffic().requests == 3


def test_what_is_expected_is_fetched_ahead(pool: Path, over_http: str, http_proxy: Proxy) -> None:
    with PoolReader(over_http) as reader:
        wanted = list(range(len(reader)))
        http_proxy.behave(latency=0.05)
        reader.prefetch(wanted)
        found = [reader.labels_at(number).tobytes() for number in wanted]
        traffic = http_proxy.traffic()
    assert found == [labels for _, _, labels in content(pool)]
    assert traffic.requests == len(reader.manifest.files_of("labels"))


@pytest.mark.parametrize("harm", ["drop", "cut", "fail", "corrupt"])
def test_a_harmed_request_is_sent_again(pool: Path, over_http: str, http_proxy: Proxy, harm: str) -> None:
    expected = content(pool)
    for part in ("labels/", "views/", "batches-", "images.parquet"):
        http_proxy.behave(Rule(harm=harm, match=part, times=1))  # type: ignore[arg-type]  # one of its words
        assert content(over_http) == expected
        assert http_proxy.traffic().harmed == 1


def test_one_request_in_twenty_fails_or_stalls(
    pool: Path, bucket: str, s3: S3Server, s3_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LPLD_LABELS_TIMEOUT", "0.5")
    address = put_pool(s3, bucket, pool)
    harms = ("stall", "drop", "fail", "cut", "corrupt")
    for harm in harms:
        s3_proxy.behave(Rule(harm=harm, every=5), stall_seconds=1.5)  # type: ignore[arg-type]
        assert content(address) == content(pool)
        assert s3_proxy.traffic().harmed >= 1
    assert check_pool(address).whole


def test_lasting_damage_is_told(pool: Path, over_http: str, http_proxy: Proxy) -> None:
    http_proxy.behave(Rule(harm="corrupt", match="labels/"))
    with PoolReader(over_http) as reader, pytest.raises(PoolCorruptError, match="checksum"):
        reader.read_labels(reader.keys[0])


def test_readers_travel_to_other_processes(pool: Path, over_http: str) -> None:
    with PoolReader(over_http) as reader:
        there = pickle.loads(pickle.dumps(reader))
        assert there.read_labels(there.keys[1]).tobytes() == content(pool)[1][2]


def test_a_cache_gives_the_second_read_for_nothing(
    pool: Path, over_http: str, http_proxy: Proxy, tmp_path: Path
) -> None:
    cache = DiskCache(tmp_path / "cache")
    expected = content(pool)
    with PoolReader(over_http, cache=cache) as reader:
        assert [batch.labels.tobytes() for batch in reader] == [labels for _, _, labels in expected]
    http_proxy.behave()
    with PoolReader(over_http, cache=cache) as reader:
        assert [batch.labels.tobytes() for batch in reader] == [labels for _, _, labels in expected]
    assert http_proxy.traffic().requests == 1  # the manifest


def test_a_damaged_entry_of_the_cache_is_fetched_again(pool: Path, over_http: str, tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    expected = [labels for _, _, labels in content(pool)]
    with PoolReader(over_http, cache=cache) as reader:
        list(reader)
    for entry in cache.directory.glob("??/*"):
        data = bytearray(entry.read_bytes())
        data[len(data) // 2] ^= 0x10
        entry.write_bytes(data)
    with PoolReader(over_http, cache=cache) as reader:
        assert [batch.labels.tobytes() for batch in reader] == expected


def test_no_pool_at_an_address(http_proxy: Proxy, bucket: str) -> None:
    for address in (f"{http_proxy.url}/nothing-here", f"{bucket}/nothing"):
        with pytest.raises(NotAPoolError, match=r"no pool\.json"):
            PoolReader(address)


def test_local_pools_import_nothing_for_addresses(pool: Path) -> None:
    program = (
        "import sys; from lpld_labels import PoolReader; import lpld_labels.transforms.remote_output\n"
        "list(PoolReader(sys.argv[1]))\n"
        "kinds = ('fsspec', 's3fs', 'aiohttp', 'botocore', 'http.client')\n"
        "print([name for name in kinds if name in sys.modules])"
    )
    words = [sys.executable, "-c", program, str(pool)]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[]\n"
