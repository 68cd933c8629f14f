"""Pools on the Hugging Face hub: one commit, refused after somebody else's, read as from other stores.

A server with the hub's endpoints stands in for it. The client reads HF_ENDPOINT only when it is
imported, so every test runs programs.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.factories import tree
from tests.lpld_labels.io.pools import small_pool
from tests.servers.processes import PROJECT, free_port, request, server

pytestmark = pytest.mark.slow  # programs and a server
pytest.importorskip("huggingface_hub")
TOKEN = "hf_test"  # noqa: S105  # the test server's
ADDRESS = "hf://datasets/me/pool"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    port = free_port()
    with server("tests.servers.hub", [port], port, health="/requests"):
        yield port


@pytest.fixture
def run(port: int, tmp_path: Path) -> Run:
    def run(*words: object, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
        ours = {
            "HF_ENDPOINT": f"http://127.0.0.1:{port}",
            "HF_HOME": str(tmp_path / "hf"),
            "HF_TOKEN": token,
            "HF_HUB_DISABLE_XET": "1",
            "LPLD_LABELS_CACHE": str(tmp_path / "cache"),
        }
        command = [sys.executable, *map(str, words)]
        environment = {**os.environ, **ours}
        return subprocess.run(
            command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
        )

    return run


def labels(run: Run, *words: object, token: str = TOKEN) -> str:
    ended = run("-m", "lpld_cli", *words, token=token)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def asked(port: int, text: str) -> int:
    return sum(text in line for line in json.loads(request(port, "GET", "/requests")))


def test_a_pool_is_published_in_one_commit_and_read(run: Run, port: int, tmp_path: Path) -> None:
    pool = small_pool(tmp_path / "pool", shards=3, epochs=4)
    labels(run, "inspect", pool, "--card", "--license", "mit", "--name", "pool")
    before = asked(port, "/commit/")
    labels(run, "copy", pool, ADDRESS)
    assert asked(port, "/commit/") == before + 1
    labels(run, "copy", pool, ADDRESS)
    assert asked(port, "/commit/") == before + 1, "what is there is not sent again"
    labels(run, "copy", ADDRESS, tmp_path / "back")
    assert tree(tmp_path / "back") == tree(pool)
    labels(run, "verify", ADDRESS)
    labels(run, "copy", ADDRESS, f"{ADDRESS}-again")
    assert asked(port, "/commit/") == before + 2
    labels(run, "verify", f"{ADDRESS}-again")
    labels(run, "prune", ADDRESS, f"{ADDRESS}-half", "--ratio", 2)
    script = (
        "from lpld_labels import PoolReader\n"
        f"pools = PoolReader({str(pool)!r}), PoolReader('{ADDRESS}-half')\n"
        "assert 0 < len(pools[1]) < len(pools[0])\n"
        "for key in pools[1].keys:\n"
        "    assert (pools[0].read(key).labels == pools[1].read(key).labels).all()\n"
    )
    ended = run("-c", script)
    assert ended.returncode == 0, ended.stderr


def test_another_pool_is_replaced_only_when_asked_and_other_files_stay(run: Run, tmp_path: Path) -> None:
    address = "hf://datasets/me/twice/folder"
    first = small_pool(tmp_path / "first", shards=2, epochs=2)
    other = small_pool(tmp_path / "other", shards=3, epochs=4)
    labels(run, "inspect", first, "--card", "--name", "first")
    labels(run, "copy", first, address)
    ended = run("-m", "lpld_cli", "copy", other, address)
    assert ended.returncode == 1
    assert "a different pool is already here" in ended.stderr
    labels(run, "copy", other, address, "--overwrite")
    labels(run, "copy", address, tmp_path / "back")
    assert tree(tmp_path / "back") == tree(other), "the card of the old pool is deleted, too"
    labels(run, "verify", address)


def test_a_commit_of_somebody_else_in_between_is_noticed(run: Run, tmp_path: Path) -> None:
    pool = small_pool(tmp_path / "pool", epochs=2)
    script = (
        "from lpld_labels.io.hub import HubCommit\n"
        "from lpld_labels.errors import StoreError\n"
        "mine, theirs = (HubCommit('hf://datasets/me/race') for _ in range(2))\n"
        "theirs.send({'README.md': b'theirs'}, [])\n"
        "try:\n"
        "    mine.send({'README.md': b'mine'}, [])\n"
        "except StoreError as error:\n"
        "    print(error)\n"
    )
    ended = run("-c", script)
    assert "412" in ended.stdout, ended.stderr
    # An edited card is kept.
    labels(run, "inspect", pool, "--card", "--name", "pool")
    labels(run, "copy", pool, "hf://datasets/me/race")
    kept = run(
        "-c",
        "from lpld_labels.io.remote import RemoteStore as S\n"
        "print(S('hf://datasets/me/race').read('README.md'))",
    )
    assert kept.stdout == "b'theirs'\n"


@pytest.mark.parametrize(
    ("address", "token", "words"),
    [
        ("hf://datasets/me/denied", "hf_wrong", "access is denied"),
        ("hf://datasets/alone", "hf_test", "Repo id"),
    ],
)
def test_what_cannot_work_is_one_line(run: Run, tmp_path: Path, address: str, token: str, words: str) -> None:
    ended = run("-m", "lpld_cli", "copy", small_pool(tmp_path / "pool", epochs=2), address, token=token)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
    assert words in ended.stderr


def test_without_the_client_the_error_names_the_extra(run: Run, tmp_path: Path) -> None:
    script = "import sys\nsys.modules['huggingface_hub'] = None\nfrom lpld_cli.main import main\nmain()\n"
    for words in (("inspect", ADDRESS), ("copy", small_pool(tmp_path / "pool", epochs=2), ADDRESS)):
        ended = run("-c", script, *words)
        assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
        assert "pip install 'lpld-labels[hub]'" in ended.stderr
