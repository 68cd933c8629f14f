"""Ranges by plain requests: what is simple goes this way, all else is left to the client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lpld_labels.io.clients import client_of
from lpld_labels.io.direct import AnswerError, Connections
from lpld_labels.io.failures import ShortReadError, passes
from lpld_labels.io.remote import RemoteStore
from tests.servers.files import FileServer
from tests.servers.proxy import Proxy
from tests.servers.rules import Rule
from tests.servers.s3 import SECRET_KEY, S3Server

DATA = bytes(range(256)) * 1000


class Answering(BaseHTTPRequestHandler):
    """Answers in the way that the path names."""

    protocol_version = "HTTP/1.1"
    asked: list[str]

    def do_GET(self) -> None:
        """See the class."""
        self.asked.append(self.path)
        start, stop = (int(place) for place in self.headers["Range"].removeprefix("bytes=").split("-"))
        body = DATA[start : stop + 1]
        fields = {"Content-Range": f"bytes {start}-{stop}/{len(DATA)}"}
        status = 206
        if self.path == "/whole":
            status, body, fields = 200, DATA, {}
        elif self.path == "/elsewhere":
            status, body, fields = 302, b"", {"Location": "/right"}
        elif self.path == "/busy":
            status, body = 503, b"later"
        elif self.path == "/other-place":
            fields["Content-Range"] = f"bytes 0-{stop - start}/{len(DATA)}"
        elif self.path == "/packed":
            fields["Content-Encoding"] = "gzip"
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path == "/half" else body)
        if self.path in ("/half", "/last"):
            # Without a word: the client finds out when it comes again.
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    Answering.asked = []
    running = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    thread.join()
    running.server_close()


def test_bytes_come_as_they_are(server: str) -> None:
    connections = Connections()
    for start, stop in ((0, 1), (5, 200_000), (255_999, 256_000)):
        found = connections.read(f"{server}/right", start, stop, timeout=5)
        assert found is not None
        assert found.to_pybytes() == DATA[start:stop]
    connections.close()


@pytest.mark.parametrize("path", ["whole", "elsewhere", "other-place", "packed"])
def test_any_other_answer_is_left_to_the_client_and_soon_not_asked_for(server: str, path: str) -> None:
    connections = Connections()
    for _ in range(5):
        assert connections.read(f"{server}/{path}", 10, 20, timeout=5) is None
    assert len(Answering.asked) == 3


def test_answers_that_pass_are_errors_that_pass(server: str) -> None:
    connections = Connections()
    with pytest.raises(AnswerError) as busy:
        connections.read(f"{server}/busy", 10, 20, timeout=5)
    assert passes(busy.value)
    with pytest.raises(ShortReadError):
        connections.read(f"{server}/half", 10, 20, timeout=5)


def test_a_connection_that_the_server_has_closed_is_replaced(server: str) -> None:
    connections = Connections()
    for _ in range(3):
        assert connections.read(f"{server}/last", 10, 20, timeout=5) is not None
    assert connections.read(f"{server}/right", 10, 20, timeout=5) is not None


@pytest.mark.parametrize("address", ["ftp://host/file", "http://user:word@127.0.0.1:1/file"])
def test_what_is_not_simple_is_not_tried(address: str) -> None:
    assert Connections().read(address, 0, 1, timeout=1) is None


def test_proxies_of_the_environment_are_left_to_the_client(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert Connections().read(f"{server}/right", 0, 1, timeout=1) is None
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert Connections().read(f"{server}/right", 0, 1, timeout=1) is not None


def without_client(store: RemoteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client of a store read nothing."""
    client = client_of(store.address, store.scheme, store.patience.timeout)
    monkeypatch.setattr(client.system, "cat_file", None)


def test_stores_read_ranges_without_their_client(
    bucket: str,
    s3: S3Server,
    http: FileServer,
    http_proxy: Proxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s3.put(bucket.removeprefix("s3://"), "a folder/ä file", DATA)
    (tmp_path / "ä file").write_bytes(DATA)
    http.add(tmp_path, tmp_path.name)
    for store in (RemoteStore(f"{bucket}/a folder"), RemoteStore(f"{http_proxy.url}/{tmp_path.name}")):
        with monkeypatch.context() as patch:
            without_client(store, patch)
            assert store.read_range("ä file", 3, 70_000).to_pybytes() == DATA[3:70_000]
            assert b"".join(map(memoryview, store.pieces("ä file", len(DATA)))) == DATA


def test_a_signature_that_is_refused_is_no_matter(
    bucket: str, s3: S3Server, s3_proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    s3.put(bucket.removeprefix("s3://"), "file", DATA)
    store = RemoteStore(bucket)
    s3_proxy.behave(Rule(harm="deny", match="X-Amz-Signature"))
    for _ in range(4):
        assert store.read_range("file", 3, 9).to_pybytes() == DATA[3:9]
    # Three are refused; then nobody tries.
    assert s3_proxy.traffic().harmed == 3
    assert s3_proxy.traffic().requests == 7
    assert "X-Amz" not in caplog.text
    assert SECRET_KEY not in caplog.text
