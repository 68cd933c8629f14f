"""Addresses as words of a command: those of files are paths, and none gives its password away."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError, LabelPoolError, without_secrets
from lpld_labels.transforms.outputs import require_apart
from tests.factories import make_batches, write_pool
from tests.servers.files import file_server

Cli = Callable[..., Result]
HIDDEN = "p@ss-word"
QUERY = "token=T0KEN"


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    write_pool(tmp_path / "pool", make_batches(2, 4)).close()
    return tmp_path / "pool"


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]], ids=["", "overwrite"])
def test_a_pool_is_the_same_by_its_address(pool: Path, cli: Cli, overwrite: list[str]) -> None:
    before = {path: path.read_bytes() for path in pool.rglob("*") if path.is_file()}
    for out in (pool, pool / "sub", pool.as_uri(), pool.parent):
        done = cli("encode", pool.as_uri(), out, "--codec", "int8", *overwrite)
        assert done.exit_code == 1
        assert "the output is" in done.stderr
    assert {path: path.read_bytes() for path in pool.rglob("*") if path.is_file()} == before
    with pytest.raises(InvalidArgumentError, match="same as an input"):
        require_apart(pool, pool.as_uri())


def test_outputs_by_address_are_where_it_says(
    pool: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    out = tmp_path / "out"
    for name, words in {
        "pruned": ("prune", pool, "--ratio", "2"),
        "copied": ("copy", pool),
        "labels": ("export", pool, "--format", "lpld"),
    }.items():
        command, source, *options = words
        done = cli(command, source, (out / name).as_uri(), *options)
        assert done.exit_code == 0, done.stderr
        assert (out / name).is_dir()
    assert cli("inspect", (out / "pruned").as_uri(), "--card").exit_code == 0
    assert (out / "pruned" / "README.md").exists()
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize(
    "address",
    [
        f"https://user:{HIDDEN}@host/pool?{QUERY}",
        f"s3://key:{HIDDEN}@bucket/pool",
        f"https://{HIDDEN}@host/pool",
    ],
)
def test_what_is_hidden(address: str) -> None:
    text = without_secrets(f"{address} and pool?x")
    assert "ss-word" not in text
    assert "T0KEN" not in text
    # Whoever raises an error need not think of it.
    error = LabelPoolError(f"no {address}", where=address, expected=address, got=address, hint=address)
    assert "ss-word" not in f"{error}{vars(error)}"
    assert "T0KEN" not in f"{error}{vars(error)}"
    assert without_secrets("how many? 3") == "how many? 3"


def test_no_page_and_no_line_has_a_password(pool: Path, tmp_path: Path, cli: Cli) -> None:
    shutil.copytree(pool, tmp_path / "served" / "pool")
    with file_server(tmp_path / "served") as server:
        address = f"http://user:a-pass-word@127.0.0.1:{server.port}/pool?{QUERY}"
        page = tmp_path / "page.html"
        runs: list[tuple[object, ...]] = [
            ("inspect", address),
            ("report", address, "--out", page),
            ("report", address, pool, "--out", tmp_path / "compare.html"),
            ("inspect", address, "--recipe"),
            ("copy", address, tmp_path / "images", "--unpack"),
            ("prune", address, tmp_path / "pruned", "--ratio", "2"),
            ("encode", address, tmp_path / "small", "--codec", "int8"),
            ("encode", address, tmp_path / "drawn", "--views", "stored"),
            ("plan", address, "--budget", "1MB"),
        ]
        for words in runs:
            for more in ([], ["--json"]):
                done = cli(*words, *more, *(["--overwrite"] if words[0] in ("prune", "encode") else []))
                said = done.stdout + done.stderr
                assert "ss-word" not in said, words
                assert "T0KEN" not in said, words
                if more and done.exit_code == 0:
                    json.loads(done.stdout)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert page in written
    for path in written:
        assert b"ss-word" not in path.read_bytes(), path
        assert b"T0KEN" not in path.read_bytes(), path


def test_names_are_no_markup(pool: Path, cli: Cli) -> None:
    (pool / "labels" / "[red]x[").mkdir()
    (pool / "labels" / "[red]x[" / "bold]").write_text("?")
    done = cli("verify", pool, "--strict")
    assert done.exit_code == 1
    assert "[red]x[/bold]" in done.stdout
    with PoolReader(pool) as reader:
        assert len(reader) == 8


def test_an_address_behind_an_equals_sign_is_a_path_too(pool: Path, tmp_path: Path, cli: Cli) -> None:
    page = tmp_path / "page.html"
    done = cli("report", pool, f"--out={page.as_uri()}")
    assert done.exit_code == 0, done.stderr
    assert page.exists()
    given = cli("report", pool, f"--out={page.as_uri()}", f"--images={(tmp_path / 'none').as_uri()}")
    assert given.exit_code == 1
    assert f"error: {tmp_path / 'none'}" in given.stderr
