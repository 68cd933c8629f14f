import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3

from lpld_labels.io.http_files import HttpFiles
from lpld_labels.io.remote import RemoteStore, client_of
from lpld_labels.io.retry import is_transient
from tests.servers.files import FileServer
from tests.servers.processes import free_port
from tests.servers.proxy import Proxy
from tests.servers.rules import Rule
from tests.servers.s3 import SECRET_KEY, S3Server

DATA = bytes(range(256)) * 1000


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: list[str]
    users: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.users += [user.removeprefix("Basic ") for user in self.headers.get_all("Authorization", [])]
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
            # Unannounced: the client finds out at its next request.
            self.close_connection = True

    def log_message(self, *_: Any, **__: Any) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    Answering.asked, Answering.users = [], []
    running = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    thread.join()
    running.server_close()


def test_bytes_come_as_they_are(server: str) -> None:
    files = HttpFiles(5)
    for start, stop in ((0, 1), (5, 200_000), (255_999, 256_000)):
        assert files.read_range(f"{server}/right", start, stop).to_pybytes() == DATA[start:stop]
        assert files.read_range(f"{server}/elsewhere", start, stop).to_pybytes() == DATA[start:stop]
    assert files.cat_file(f"{server}/right", 0, 70) == DATA[:70]
    assert files.cat_file(f"{server}/whole", 0, 70) == DATA[:70]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("whole", "range requests"),
        ("other-place", "asked for"),
        ("packed", "range requests"),
        ("busy", "503"),
        ("half", "IncompleteRead"),
    ],
)
def test_any_other_answer_than_the_range_is_a_transient_failure(server: str, path: str, words: str) -> None:
    with pytest.raises(Exception, match=words) as failed:
        HttpFiles(5).read_range(f"{server}/{path}", 10, 20)
    assert is_transient(failed.value)


def test_a_connection_that_the_server_has_closed_is_replaced(server: str) -> None:
    store = RemoteStore(server)
    for path in ("last", "last", "last", "right"):
        assert store.read_range(path, 10, 20).to_pybytes() == DATA[10:20]


def test_a_password_of_the_address_is_sent_and_not_shown(server: str) -> None:
    files = HttpFiles(5)
    address = server.replace("//", "//user:w%20rd@")
    assert files.read_range(f"{address}/right?sig=1", 10, 20).to_pybytes() == DATA[10:20]
    assert Answering.users == [base64.b64encode(b"user:w rd").decode()]
    port = free_port()
    with pytest.raises(urllib3.exceptions.HTTPError) as failed:
        files.read_range(f"http://user:word@127.0.0.1:{port}/right?sig=secret", 10, 20)
    assert "word" not in str(failed.value)
    assert "secret" not in str(failed.value)


def test_proxies_of_the_environment_are_used(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(urllib3.exceptions.ProxyError):
        HttpFiles(5).read_range(f"{server}/right", 0, 1)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert HttpFiles(5).read_range(f"{server}/right", 0, 1).to_pybytes() == DATA[:1]


def test_s3_ranges_need_no_client(
    bucket: str, s3: S3Server, http: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Names of files are quoted, in buckets and on web servers."""
    s3.put(bucket.removeprefix("s3://"), "a folder/ä file", DATA)
    store = RemoteStore(f"{bucket}/a folder")
    client = client_of(store.address, store.scheme, store.timeout)
    monkeypatch.setattr(client.system, "cat_file", None)
    assert b"".join(map(memoryview, store.pieces("ä file", len(DATA)))) == DATA
    (tmp_path / "ä file").write_bytes(DATA)
    http.add(tmp_path, tmp_path.name)
    for found in (store, RemoteStore(f"{http.url}/{tmp_path.name}")):
        assert found.read_range("ä file", 3, 70_000).to_pybytes() == DATA[3:70_000]


def test_bad_signatures(bucket: str, s3: S3Server, s3_proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    s3.put(bucket.removeprefix("s3://"), "file", DATA)
    store = RemoteStore(bucket)
    s3_proxy.behave(Rule(harm="deny", match="X-Amz-Signature"))
    for _ in range(4):
        assert store.read_range("file", 3, 9).to_pybytes() == DATA[3:9]
    # Three are refused; then none is sent.
    assert s3_proxy.traffic().harmed == 3
    assert s3_proxy.traffic().requests == 7
    assert "X-Amz" not in caplog.text
    assert SECRET_KEY not in caplog.text
