from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lpld_labels.io.addresses import child, normalize_url
from tests.servers.processes import free_port
from tests.servers.s3 import SECRET_KEY, S3Server, s3_server

Line = Callable[..., str]


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Result]) -> Line:
    """Run a command that must fail, and return its one line."""
    monkeypatch.setenv("LPLD_LABELS_CACHE", str(tmp_path / "cache"))

    def run(*words: object) -> str:
        result = cli(*words)
        assert result.exit_code == 1, result.output
        (found,) = result.stderr.strip().splitlines()
        assert found.startswith("error: ")
        assert len(found) < 400
        assert SECRET_KEY not in result.output
        return str(found)

    return run


@pytest.mark.usefixtures("s3")
def test_missing_buckets_servers_and_unknown_kinds(monkeypatch: pytest.MonkeyPatch, line: Line) -> None:
    assert "bucket does not exist" in line("inspect", "s3://no-such-bucket-anywhere/pool")
    assert "unsupported kind of address" in line("inspect", "nosuch://bucket/pool")
    port = free_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    assert "cannot be reached" in line("inspect", "s3://bucket/pool")
    assert "cannot be reached" in line("inspect", f"http://user:{SECRET_KEY}@127.0.0.1:{port}/pool")


def test_wrong_credentials(line: Line, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of its own refuses credentials it does not know."""
    del s3
    with s3_server() as server:
        server.make_bucket("guarded")
        server.require_credentials()
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        assert "access is denied" in line("inspect", "s3://guarded/pool")
        assert "access is denied" in line("copy", "s3://guarded/pool", tmp_path / "out")


@pytest.mark.usefixtures("s3")
def test_no_credentials(monkeypatch: pytest.MonkeyPatch, line: Line, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "no credentials found" in line("inspect", "s3://bucket/pool")


def test_files_below_an_address() -> None:
    assert child("https://host/pool?sig=1", "labels/a.parquet") == "https://host/pool/labels/a.parquet?sig=1"
    for spelling in ("s3://bucket/pool//", "s3://bucket/pool/pool.json"):
        assert normalize_url(spelling) == "s3://bucket/pool"
