"""Cards go where their pools go, and are written where they lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lpld_labels.inspect.check import check_pool
from lpld_labels.io.remote import RemoteStore
from lpld_labels.transforms.copy import copy_pool
from tests.lpld_labels.io.pools import small_pool
from tests.servers.files import FileServer

Cli = Callable[..., Result]


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return small_pool(tmp_path / "pool")


def test_a_copy_has_the_card(cli: Cli, pool: Path, bucket: str, tmp_path: Path, http: FileServer) -> None:
    assert cli("inspect", pool, "--card", "--license", "mit").exit_code == 0
    card = (pool / "README.md").read_bytes()
    copy_pool(pool, f"{bucket}/pool")
    assert RemoteStore(f"{bucket}/pool").read("README.md") == card
    copy_pool(f"{bucket}/pool", tmp_path / "back")
    copy_pool(http.add(pool, tmp_path.name), tmp_path / "from_http")
    assert (tmp_path / "back" / "README.md").read_bytes() == card
    assert (tmp_path / "from_http" / "README.md").read_bytes() == card
    assert check_pool(f"{bucket}/pool", strict=True).whole


def test_a_card_that_came_later_is_brought_by_the_same_copy(cli: Cli, pool: Path, bucket: str) -> None:
    store = RemoteStore(f"{bucket}/pool")
    copy_pool(pool, store.address)
    assert "README.md" not in store.sizes()
    cli("inspect", pool, "--card")
    assert copy_pool(pool, store.address).files == 0
    assert store.read("README.md") == (pool / "README.md").read_bytes()
    store.put("README.md", b"# edited")
    copy_pool(pool, store.address)
    assert store.read("README.md") == b"# edited"


def test_cards_are_written_to_addresses(cli: Cli, pool: Path, bucket: str, http: FileServer) -> None:
    address = f"{bucket}/pool"
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
    # A card is no hindrance to --overwrite.
    other = small_pool(pool.with_name("other"), epochs=1)
    copy_pool(other, address, overwrite=True)
    assert "README.md" not in store.sizes()
    served = http.add(pool, pool.parent.name)
    assert "cannot be written to" in cli("inspect", served, "--card").stderr
