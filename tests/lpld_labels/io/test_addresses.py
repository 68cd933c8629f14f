"""What goes wrong with addresses and does not pass: one clear line, and no secret in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from lpld_labels.errors import without_secrets
from lpld_labels.io.addresses import child, normalize_url, redact
from tests.servers.processes import free_port
from tests.servers.s3 import SECRET_KEY, S3Server, s3_server

LONGEST = 400


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPLD_LABELS_CACHE", str(tmp_path / "cache"))


def line_of(result: Result) -> str:
    """Return the one line of a command that failed."""
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert len(line) < LONGEST
    assert "Traceback" not in result.output
    assert SECRET_KEY not in result.output
    return line


def test_missing_bucket(s3: S3Server, cli: Callable[..., Result]) -> None:
    del s3
    line = line_of(cli("inspect", "s3://no-such-bucket-anywhere/pool"))
    assert "there is no such bucket" in line


def test_a_server_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Result], s3: S3Server
) -> None:
    del s3
    port = free_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    assert "cannot be reached" in line_of(cli("inspect", "s3://bucket/pool"))
    assert "cannot be reached" in line_of(cli("inspect", f"http://user:{SECRET_KEY}@127.0.0.1:{port}/pool"))


@pytest.fixture
def strict_s3(monkeypatch: pytest.MonkeyPatch, s3: S3Server) -> Iterator[S3Server]:
    """A server of its own that refuses credentials it does not know."""
    del s3
    with s3_server() as server:
        server.make_bucket("guarded")
        server.require_credentials()
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        yield server


def test_wrong_credentials(strict_s3: S3Server, cli: Callable[..., Result], tmp_path: Path) -> None:
    del strict_s3
    assert "access is denied" in line_of(cli("inspect", "s3://guarded/pool"))
    (tmp_path / "pool").mkdir()
    assert "access is denied" in line_of(cli("copy", "s3://guarded/pool", tmp_path / "out"))


def test_no_credentials(
    monkeypatch: pytest.MonkeyPatch, s3: S3Server, cli: Callable[..., Result], tmp_path: Path
) -> None:
    del s3
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "no credentials found" in line_of(cli("inspect", "s3://bucket/pool"))


def test_unknown_kinds_of_addresses(cli: Callable[..., Result]) -> None:
    assert "no client opens such an address" in line_of(cli("inspect", "nosuch://bucket/pool"))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("s3://bucket/pool", "s3://bucket/pool"),
        ("https://user:password@host/pool", "https://...@host/pool"),
        ("https://host/pool?X-Amz-Signature=abc&X=1", "https://host/pool?..."),
        ("https://key@host:8080/a/b?c", "https://...@host:8080/a/b?..."),
        ("pools/a?b@c", "pools/a?b@c"),
    ],
)
def test_what_is_shown_of_an_address(address: str, expected: str) -> None:
    assert redact(address) == expected


def test_secrets_in_messages_of_others() -> None:
    text = "GET 'https://u:p@host/x?Signature=abc' failed, see https://host/y"
    assert without_secrets(text) == "GET 'https://...@host/x?...' failed, see https://host/y"


def test_files_below_an_address() -> None:
    assert child("https://host/pool?sig=1", "labels/a.parquet") == "https://host/pool/labels/a.parquet?sig=1"
    assert (
        normalize_url("s3://bucket/pool//")
        == normalize_url("s3://bucket/pool/pool.json")
        == "s3://bucket/pool"
    )
