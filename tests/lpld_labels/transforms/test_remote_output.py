"""Copying and writing pools to addresses: whole or not at all, resumed, one winner."""

from __future__ import annotations

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
from lpld_labels.transforms.prune import prune_pool
from lpld_labels.transforms.remote_output import destination, outgoing_folder
from lpld_labels.transforms.settings import PruneSettings
from tests.lpld_labels.io.pools import content, put_pool, small_pool
from tests.servers.files import FileServer
from tests.servers.proxy import Proxy
from tests.servers.rules import Rule
from tests.servers.s3 import S3Server


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_pool(tmp_path_factory.mktemp("pools") / "pool", shards=4, epochs=6)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_pool(tmp_path_factory.mktemp("pools") / "other", epochs=2)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPLD_LABELS_CACHE", str(tmp_path / "cache"))


def test_there_and_back(pool: Path, bucket: str, tmp_path: Path, http: FileServer) -> None:
    first = copy_pool(pool, f"{bucket}/a")
    assert first.sent == sum(entry.bytes for entry in first.manifest.files)
    assert copy_pool(f"{bucket}/a", f"{bucket}/b").sent == first.sent
    copy_pool(f"{bucket}/b", tmp_path / "back")
    assert content(tmp_path / "back") == content(pool)
    names = sorted(path.relative_to(pool) for path in pool.rglob("*"))
    assert sorted(path.relative_to(tmp_path / "back") for path in (tmp_path / "back").rglob("*")) == names
    assert all(
        (tmp_path / "back" / name).read_bytes() == (pool / name).read_bytes()
        for name in names
        if (pool / name).is_file()
    )
    served = http.add(pool, tmp_path.name)
    copy_pool(served, tmp_path / "from_http")
    assert check_pool(tmp_path / "from_http").whole


def test_only_what_is_missing_is_sent(pool: Path, bucket: str, s3_proxy: Proxy, tmp_path: Path) -> None:
    address = f"{bucket}/pool"
    copy_pool(pool, address)
    store = RemoteStore(address)
    gone = [MANIFEST_FILE, f"labels/{min((pool / 'labels').iterdir()).name}"]
    store.delete(gone)
    s3_proxy.behave()
    again = copy_pool(pool, address)
    assert again.files == 1
    sent = s3_proxy.traffic().bytes_up
    assert sent < sum((pool / name).stat().st_size for name in gone) + 1000
    assert copy_pool(pool, address).files == 0
    copy_pool(address, tmp_path / "here")
    (tmp_path / "here" / MANIFEST_FILE).unlink()
    assert copy_pool(address, tmp_path / "there").files > 1


def test_a_failed_upload_is_no_pool_and_goes_on(pool: Path, bucket: str, s3_proxy: Proxy) -> None:
    address = f"{bucket}/pool"
    uploads = len(list(pool.rglob("*.parquet"))) + 1
    for stop in range(1, uploads):
        s3_proxy.behave(*[Rule(harm="fail", method="PUT", every=stop)] if stop == 1 else [])
        if stop > 1:
            break
        with pytest.raises(StoreError, match="tried 6 times"):
            copy_pool(pool, address)
        with pytest.raises(NotAPoolError):
            PoolReader(address)
    assert copy_pool(pool, address).files > 0
    assert content(address) == content(pool)


def test_a_byte_changed_on_the_way_is_fetched_again(
    pool: Path, http: FileServer, http_proxy: Proxy, tmp_path: Path
) -> None:
    http.add(pool, tmp_path.name)
    http_proxy.behave(Rule(harm="corrupt", match="labels/", times=1))
    copy_pool(f"{http_proxy.url}/{tmp_path.name}", tmp_path / "copy")
    assert http_proxy.traffic().harmed == 1
    assert check_pool(tmp_path / "copy").whole


def test_one_request_in_twenty_fails(pool: Path, bucket: str, s3_proxy: Proxy, tmp_path: Path) -> None:
    s3_proxy.behave(Rule(harm="fail", every=20), Rule(harm="drop", every=19))
    copy_pool(pool, f"{bucket}/pool")
    copy_pool(f"{bucket}/pool", tmp_path / "back")
    assert s3_proxy.traffic().harmed >= 2
    assert content(tmp_path / "back") == content(pool)


def test_another_pool_is_not_replaced_unless_asked(pool: Path, other: Path, bucket: str) -> None:
    address = f"{bucket}/pool"
    copy_pool(pool, address)
    with pytest.raises(PoolConflictError, match="another pool is already here"):
        copy_pool(other, address)
    assert content(address) == content(pool)
    copy_pool(other, address, overwrite=True)
    assert content(address) == content(other)
    assert check_pool(address).whole  # nothing is left of the first
    RemoteStore(f"{bucket}/mixed").put("notes.txt", b"mine")
    with pytest.raises(PoolConflictError, match="no label pool"):
        copy_pool(other, f"{bucket}/mixed", overwrite=True)


def test_of_two_writers_one_wins_and_the_other_loses_nothing(
    pool: Path, tmp_path: Path, bucket: str, s3: S3Server, s3_proxy: Proxy
) -> None:
    with PoolReader(pool) as reader:
        prune_pool(reader, tmp_path / "half", PruneSettings(ratio=2))
        prune_pool(reader, tmp_path / "third", PruneSettings(ratio=3))
    address = f"{bucket}/pool"
    s3_proxy.behave(latency=0.05)
    outcomes: dict[str, object] = {}

    def write(name: str) -> None:
        try:
            outcomes[name] = copy_pool(tmp_path / name, address)
        except LabelPoolError as error:
            outcomes[name] = error

    threads = [threading.Thread(target=write, args=(name,)) for name in ("half", "third")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    losers = [name for name, outcome in outcomes.items() if isinstance(outcome, LabelPoolError)]
    assert len(losers) == 1
    loser = losers[0]
    winner = "third" if loser == "half" else "half"
    assert isinstance(outcomes[loser], PoolConflictError)
    assert "pool" in str(outcomes[loser])
    assert content(address) == content(tmp_path / winner)
    assert check_pool(address).whole
    # The loser's pool is as it was, and can go elsewhere.
    copy_pool(tmp_path / loser, f"{bucket}/elsewhere")
    assert content(f"{bucket}/elsewhere") == content(tmp_path / loser)
    del s3


def test_a_manifest_that_appears_meanwhile_is_not_replaced(pool: Path, other: Path, bucket: str) -> None:
    address = f"{bucket}/pool"

    def write() -> None:
        with destination(address) as path:
            shutil.copytree(pool, path)
            copy_pool(other, address)

    with pytest.raises(PoolConflictError, match="here"):
        write()
    assert content(address) == content(other)
    assert check_pool(address).whole
    assert (outgoing_folder(address) / "pool" / MANIFEST_FILE).exists()


def test_a_pool_that_is_extended_is_fetched_first_also_after_a_kill(
    pool: Path, bucket: str, s3_proxy: Proxy
) -> None:
    address = f"{bucket}/pool"
    copy_pool(pool, address)
    s3_proxy.behave(Rule(harm="fail", match="labels/", method="GET"))
    with pytest.raises(StoreError), destination(address, extend=True):
        pytest.fail("there is nothing to extend yet")
    s3_proxy.behave()
    with destination(address, extend=True) as path:
        assert content(path) == content(pool)
    assert content(address) == content(pool)


@pytest.mark.parametrize("command", ["prune", "encode", "copy"])
def test_commands_write_to_addresses(
    command: str, pool: Path, bucket: str, tmp_path: Path, cli: Callable[..., Result]
) -> None:
    words: dict[str, list[object]] = {
        "prune": [pool, "OUT", "--ratio", 2],
        "encode": [pool, "OUT", "--codec", "int8"],
        "copy": [pool, tmp_path / "rest", "OUT"],
    }
    if command == "copy":
        from tests.factories import make_batches, make_header, make_images, write_pool

        images = make_images(classes=10)
        late = make_batches(epochs=8, per_epoch=4, images=images)[24:]
        write_pool(tmp_path / "rest", late, header=make_header(10, 8), images=images)
    for out in (f"{bucket}/out", tmp_path / "out"):
        result = cli(command, *[out if word == "OUT" else word for word in words[command]], "--json")
        assert result.exit_code == 0, result.output
    assert content(f"{bucket}/out") == content(tmp_path / "out")
    digests = [PoolReader(place).manifest.content_digest for place in (f"{bucket}/out", tmp_path / "out")]
    assert digests[0] == digests[1]
    assert check_pool(f"{bucket}/out").whole
    again = cli(command, *[f"{bucket}/out" if word == "OUT" else word for word in words[command]], "--json")
    assert again.exit_code == 0, again.output
    assert not (outgoing_folder(f"{bucket}/out") / "pool").exists()


def test_pruning_to_a_fortieth_fetches_little_more(
    http: FileServer, http_proxy: Proxy, tmp_path: Path, cli: Callable[..., Result]
) -> None:
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


def test_http_cannot_be_written_to(pool: Path, http: FileServer) -> None:
    with pytest.raises(StoreError, match="cannot be written to"):
        copy_pool(pool, f"{http.url}/new")


def test_signed_addresses_stay_secret(
    pool: Path, http: FileServer, tmp_path: Path, cli: Callable[..., Result]
) -> None:
    http.add(pool, tmp_path.name)
    signed = f"http://user:password@127.0.0.1:{http.port}/{tmp_path.name}?X-Amz-Signature=topsecret"
    for words in (
        ["inspect", signed],
        ["copy", signed, tmp_path / "out"],
        ["verify", signed],
        ["inspect", signed.replace(tmp_path.name, "nothing")],
    ):
        result = cli(*words)
        assert "topsecret" not in result.output
        assert "password" not in result.output
    assert "topsecret" not in (tmp_path / "out" / MANIFEST_FILE).read_text()
    assert content(tmp_path / "out") == content(pool)


def test_put_pool_is_what_copy_makes(pool: Path, bucket: str, s3: S3Server) -> None:
    address = put_pool(s3, bucket, pool)
    assert copy_pool(pool, address).files == 0


Cli = Callable[..., Result]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return small_pool(tmp_path / "pool")


def test_a_copy_has_the_card(cli: Cli, small: Path, bucket: str, tmp_path: Path, http: FileServer) -> None:
    assert cli("inspect", small, "--card", "--license", "mit").exit_code == 0
    card = (small / "README.md").read_bytes()
    copy_pool(small, f"{bucket}/pool")
    assert RemoteStore(f"{bucket}/pool").read("README.md") == card
    copy_pool(f"{bucket}/pool", tmp_path / "back")
    copy_pool(http.add(small, tmp_path.name), tmp_path / "from_http")
    assert (tmp_path / "back" / "README.md").read_bytes() == card
    assert (tmp_path / "from_http" / "README.md").read_bytes() == card
    assert check_pool(f"{bucket}/pool", strict=True).whole


def test_a_card_that_came_later_is_brought_by_the_same_copy(cli: Cli, small: Path, bucket: str) -> None:
    store = RemoteStore(f"{bucket}/pool")
    copy_pool(small, store.address)
    assert "README.md" not in store.sizes()
    cli("inspect", small, "--card")
    assert copy_pool(small, store.address).files == 0
    assert store.read("README.md") == (small / "README.md").read_bytes()
    store.put("README.md", b"# edited")
    copy_pool(small, store.address)
    assert store.read("README.md") == b"# edited"


def test_cards_are_written_to_addresses(cli: Cli, small: Path, bucket: str, http: FileServer) -> None:
    address = f"{bucket}/pool"
    copy_pool(small, address)
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
    # A card is no hindrance to --overwrite.
    other = small_pool(small.with_name("other"), epochs=1)
    copy_pool(other, address, overwrite=True)
    assert "README.md" not in store.sizes()
    served = http.add(small, small.parent.name)
    assert "cannot be written to" in cli("inspect", served, "--card").stderr


SCORED = PruneSettings(ratio=2, by="diff", prefer="hard")


class Reads:
    """Counts labels that are read, and stops at the fourth."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = PoolReader.read_labels

        def counted(*args: Any, **more: Any) -> Any:
            self.count += 1
            if self.count == 4:
                raise KeyboardInterrupt
            return real(*args, **more)

        monkeypatch.setattr(PoolReader, "read_labels", counted)


def test_scoring_goes_on(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PoolReader(small_pool(tmp_path / "pool", epochs=6)) as pool:
        prune_pool(pool, tmp_path / "whole", SCORED)
        reads = Reads(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            prune_pool(pool, f"{bucket}/out", SCORED)
        reads.count = 100
        prune_pool(pool, f"{bucket}/out", SCORED)
    assert content(f"{bucket}/out") == content(tmp_path / "whole")
    assert not list(outgoing_folder(f"{bucket}/out").rglob("*.parquet"))
    assert not (outgoing_folder(f"{bucket}/out") / "pool").exists()


def test_a_pool_that_is_there_is_still_seen(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores that wait do not hide what somebody has published meanwhile."""
    small_pool(tmp_path / "other", epochs=2)
    with PoolReader(small_pool(tmp_path / "pool", epochs=6)) as pool:
        reads = Reads(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            prune_pool(pool, f"{bucket}/out", SCORED)
        copy_pool(tmp_path / "other", f"{bucket}/out")
        reads.count = 100
        with pytest.raises(PoolConflictError, match="another pool"):
            prune_pool(pool, f"{bucket}/out", SCORED)
        prune_pool(pool, f"{bucket}/out", SCORED, overwrite=True)
        prune_pool(pool, tmp_path / "whole", SCORED)
    assert content(f"{bucket}/out") == content(tmp_path / "whole")
