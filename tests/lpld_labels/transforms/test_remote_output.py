import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from lpld_labels import PoolReader
from lpld_labels.errors import LabelPoolError, NotAPoolError, PoolConflictError, StoreError
from lpld_labels.format.schema import MANIFEST_FILE
from lpld_labels.inspect.check import check_pool
from lpld_labels.io.remote import RemoteStore
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.copy import copy_pool
from lpld_labels.transforms.remote_output import destination, outgoing_folder
from lpld_labels.transforms.settings import PruneSettings
from tests.factories import make_batches, make_header, make_images, prune_pool, tree, write_pool
from tests.lpld_labels.io.pools import content, put_pool, small_pool
from tests.servers.files import FileServer
from tests.servers.proxy import Proxy
from tests.servers.rules import Rule
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.slow  # servers
Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_pool(tmp_path_factory.mktemp("pools") / "pool", shards=4, epochs=6)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_pool(tmp_path_factory.mktemp("pools") / "other", epochs=2)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPLD_LABELS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def address(bucket: str) -> str:
    return f"{bucket}/pool"


def test_there_and_back(pool: Path, bucket: str, tmp_path: Path, http: FileServer, s3: S3Server) -> None:
    first = copy_pool(pool, f"{bucket}/a")
    assert first.sent == sum(entry.bytes for entry in first.manifest.files)
    assert copy_pool(f"{bucket}/a", f"{bucket}/b").sent == first.sent
    copy_pool(f"{bucket}/b", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(pool)
    copy_pool(http.add(pool, tmp_path.name), tmp_path / "from_http")
    assert check_pool(tmp_path / "from_http").whole
    assert copy_pool(pool, put_pool(s3, bucket, pool)).files == 0
    with pytest.raises(StoreError, match="web servers are read-only"):
        copy_pool(pool, f"{http.url}/new")


def test_a_failed_upload_resumes_and_only_missing_files_are_sent(
    pool: Path, address: str, s3_proxy: Proxy, tmp_path: Path
) -> None:
    s3_proxy.behave(Rule(harm="fail", method="PUT"))
    with pytest.raises(StoreError, match="tried 6 times"):
        copy_pool(pool, address)
    with pytest.raises(NotAPoolError):
        PoolReader(address)
    s3_proxy.behave()
    assert copy_pool(pool, address).files > 0
    assert content(address) == content(pool)
    gone = [MANIFEST_FILE, f"labels/{min((pool / 'labels').iterdir()).name}"]
    RemoteStore(address).delete(gone)
    s3_proxy.behave()
    assert copy_pool(pool, address).files == 1
    assert s3_proxy.traffic().bytes_up < sum((pool / name).stat().st_size for name in gone) + 1000
    assert copy_pool(pool, address).files == 0
    copy_pool(address, tmp_path / "here")
    (tmp_path / "here" / MANIFEST_FILE).unlink()
    assert copy_pool(address, tmp_path / "there").files > 1


def test_a_pool_is_not_replaced_unless_asked(pool: Path, other: Path, address: str, bucket: str) -> None:
    copy_pool(pool, address)
    with pytest.raises(PoolConflictError, match="a different pool is already here"):
        copy_pool(other, address)
    assert content(address) == content(pool)
    copy_pool(other, address, overwrite=True)
    assert content(address) == content(other)
    assert check_pool(address).whole, "nothing is left of the first"
    RemoteStore(f"{bucket}/mixed").put("notes.txt", b"mine")
    with pytest.raises(PoolConflictError, match="not belong to a label pool"):
        copy_pool(other, f"{bucket}/mixed", overwrite=True)


def test_of_two_writers_one_wins(pool: Path, tmp_path: Path, bucket: str, s3_proxy: Proxy) -> None:
    with PoolReader(pool) as reader:
        prune_pool(reader, tmp_path / "half", PruneSettings(ratio=2))
        prune_pool(reader, tmp_path / "third", PruneSettings(ratio=3))
    address = f"{bucket}/pool"
    s3_proxy.behave(latency=0.05)
    errors: dict[str, LabelPoolError] = {}

    def write(name: str) -> None:
        try:
            copy_pool(tmp_path / name, address)
        except LabelPoolError as error:
            errors[name] = error

    threads = [threading.Thread(target=write, args=(name,)) for name in ("half", "third")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ((loser, error),) = errors.items()
    winner = "third" if loser == "half" else "half"
    assert isinstance(error, PoolConflictError)
    assert content(address) == content(tmp_path / winner)
    assert check_pool(address).whole
    # The loser's pool is as it was, and can go elsewhere.
    copy_pool(tmp_path / loser, f"{bucket}/elsewhere")
    assert content(f"{bucket}/elsewhere") == content(tmp_path / loser)


def test_a_manifest_that_appears_meanwhile_is_not_replaced(pool: Path, other: Path, address: str) -> None:
    def write() -> None:
        with destination(address) as path:
            shutil.copytree(pool, path)
            copy_pool(other, address)

    with pytest.raises(PoolConflictError, match="here"):
        write()
    assert content(address) == content(other)
    assert check_pool(address).whole
    assert (outgoing_folder(address) / "pool" / MANIFEST_FILE).exists()


def test_a_pool_to_extend_is_fetched_first(pool: Path, address: str, s3_proxy: Proxy) -> None:
    copy_pool(pool, address)
    s3_proxy.behave(Rule(harm="fail", match="labels/", method="GET"))
    with pytest.raises(StoreError), destination(address, extend=True):
        pytest.fail("there is nothing to extend yet")
    s3_proxy.behave()
    with destination(address, extend=True) as path:
        assert content(path) == content(pool)
    assert content(address) == content(pool)


@pytest.mark.parametrize("command", ["prune", "encode", "copy"])
def test_commands_write_remotely(command: str, pool: Path, address: str, tmp_path: Path, cli: Cli) -> None:
    late = make_batches(epochs=8, per_epoch=4, images=make_images(classes=10))[24:]
    write_pool(tmp_path / "rest", late, header=make_header(10, 8), images=make_images(classes=10))
    more = {"prune": ("--ratio", 2), "encode": ("--codec", "int8")}.get(command, ())
    inputs = (pool, tmp_path / "rest") if command == "copy" else (pool,)
    for out in (address, tmp_path / "out", address):
        result = cli(command, *inputs, out, *more, "--json")
        assert result.exit_code == 0, result.output
    assert content(address) == content(tmp_path / "out")
    digests = [PoolReader(place).manifest.content_digest for place in (address, tmp_path / "out")]
    assert digests[0] == digests[1]
    assert check_pool(address).whole
    assert not (outgoing_folder(address) / "pool").exists()


def test_pruning_fetches_little(http: FileServer, http_proxy: Proxy, tmp_path: Path, cli: Cli) -> None:
    big = small_pool(tmp_path / "big", codec="f16:plain", epochs=40, classes=1000, rows=64)
    http.add(big, tmp_path.name)
    http_proxy.behave()
    result = cli("prune", f"{http_proxy.url}/{tmp_path.name}", tmp_path / "part", "--ratio", 10, "--json")
    assert result.exit_code == 0, result.output
    with PoolReader(big) as reader:
        prune_pool(reader, tmp_path / "pruned", PruneSettings(ratio=10))
    expected = PoolReader(tmp_path / "pruned").manifest
    assert json.loads(result.stdout)["content_digest"] == expected.content_digest
    assert http_proxy.traffic().bytes_down < 1.3 * pool_bytes(expected)


def test_a_copy_brings_the_card(
    cli: Cli, pool: Path, address: str, bucket: str, tmp_path: Path, http: FileServer
) -> None:
    source, store = tmp_path / "source", RemoteStore(address)
    shutil.copytree(pool, source)
    copy_pool(source, address)
    assert "README.md" not in store.sizes()
    assert cli("inspect", source, "--card", "--license", "mit").exit_code == 0
    card = (source / "README.md").read_bytes()
    assert copy_pool(source, address).files == 0
    assert store.read("README.md") == card
    for start, name in ((address, "back"), (http.add(source, tmp_path.name), "from_http")):
        copy_pool(start, tmp_path / name)
        assert (tmp_path / name / "README.md").read_bytes() == card
    assert check_pool(address, strict=True).whole
    store.put("README.md", b"# edited")
    copy_pool(source, address)
    assert store.read("README.md") == b"# edited"


def test_cards_at_addresses(cli: Cli, pool: Path, other: Path, address: str, http: FileServer) -> None:
    copy_pool(pool, address)
    result = cli("inspect", address, "--card", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["card"] == f"{address}/README.md"
    store = RemoteStore(address)
    assert store.read("README.md").startswith(b"---\n")
    assert "already up to date" in cli("inspect", address, "--card").stderr
    store.put("README.md", b"# edited")
    refused = cli("inspect", address, "--card")
    assert refused.exit_code == 1
    assert "this card was edited" in refused.stderr
    assert cli("inspect", address, "--card", "--overwrite").exit_code == 0
    assert store.read("README.md").startswith(b"---\n")
    copy_pool(other, address, overwrite=True)
    assert "README.md" not in store.sizes()
    served = http.add(pool, pool.parent.name)
    assert "web servers are read-only" in cli("inspect", served, "--card").stderr


def test_scoring_resumes_and_sees_pools_published_meanwhile(
    address: str, bucket: str, other: Path, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = PruneSettings(ratio=2, by="diff", prefer="hard")
    real = PoolReader.read_labels
    calls = iter(range(1000))

    def interrupted(*args: Any, **more: Any) -> Any:
        if next(calls) % 4 == 3:
            raise KeyboardInterrupt
        return real(*args, **more)

    with PoolReader(pool) as reader:
        prune_pool(reader, tmp_path / "whole", scored)
        with monkeypatch.context() as patched:
            patched.setattr(PoolReader, "read_labels", interrupted)
            for out in (address, f"{bucket}/taken"):
                with pytest.raises(KeyboardInterrupt):
                    prune_pool(reader, out, scored)
        prune_pool(reader, address, scored)
        copy_pool(other, f"{bucket}/taken")
        with pytest.raises(PoolConflictError, match="different pool"):
            prune_pool(reader, f"{bucket}/taken", scored)
        prune_pool(reader, f"{bucket}/taken", scored, overwrite=True)
    for out in (address, f"{bucket}/taken"):
        assert content(out) == content(tmp_path / "whole")
    assert not list(outgoing_folder(address).rglob("*.parquet"))
    assert not (outgoing_folder(address) / "pool").exists()
