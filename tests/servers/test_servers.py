"""The servers themselves: what tests of other things rely on."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, IncompleteRead, RemoteDisconnected
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
import pytest

from tests.servers.files import FileServer
from tests.servers.objects import object_server
from tests.servers.proxy import Proxy
from tests.servers.rules import Rule
from tests.servers.s3 import S3Server, environment

DATA = bytes(range(256)) * 4096


@pytest.fixture
def address(http: FileServer, http_proxy: Proxy, tmp_path: Path) -> str:
    (tmp_path / "file").write_bytes(DATA)
    name = tmp_path.name
    http.add(tmp_path, name)
    return f"{http_proxy.url}/{name}/file"


def get(address: str, span: str | None = None) -> bytes:
    place = urlsplit(address)
    with contextlib.closing(HTTPConnection(place.netloc, timeout=10)) as connection:
        connection.request("GET", place.path, headers={"Range": f"bytes={span}"} if span else {})
        answer = connection.getresponse()
        if answer.status >= 400:
            raise HTTPException(answer.status)
        return answer.read()


def test_ranges_and_counts(address: str, http_proxy: Proxy) -> None:
    assert get(address) == DATA
    assert get(address, "5-9") == DATA[5:10]
    assert get(address, "1048570-") == DATA[-6:]
    traffic = http_proxy.traffic()
    assert (traffic.requests, traffic.bytes_down) == (3, len(DATA) + 5 + 6)
    assert [asked[2] for asked in traffic.asked] == ["", "bytes=5-9", "bytes=1048570-"]


def test_latency_is_added_and_answers_share_a_link(address: str, http_proxy: Proxy) -> None:
    http_proxy.behave(latency=0.05, bytes_per_second=8 * len(DATA))
    began = time.monotonic()
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(get, [address, address])) == [DATA, DATA]
    assert time.monotonic() - began >= 0.05 + 0.25


def test_objects_are_read_as_from_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bucket" / "a folder").mkdir(parents=True)
    (tmp_path / "bucket" / "a folder" / "object").write_bytes(DATA)
    with object_server(tmp_path) as port:
        for name, value in environment(f"http://127.0.0.1:{port}").items():
            monkeypatch.setenv(name, value)
        system = fsspec.filesystem("s3", skip_instance_cache=True)
        assert system.cat_file("s3://bucket/a folder/object", start=3, end=7) == DATA[3:7]
        assert system.find("s3://bucket/a folder") == ["bucket/a folder/object"]
        with pytest.raises(FileNotFoundError):
            system.cat_file("s3://bucket/nothing")


def test_harm_comes_when_told(address: str, http_proxy: Proxy) -> None:
    http_proxy.behave(Rule(harm="fail", every=2, match="file", times=1))
    assert get(address, "0-3") == DATA[:4]
    with pytest.raises(HTTPException, match="503"):
        get(address, "0-3")
    assert get(address, "0-3") == get(address, "0-3") == DATA[:4]
    http_proxy.behave(Rule(harm="drop"))
    with pytest.raises(RemoteDisconnected):
        get(address)
    http_proxy.behave(Rule(harm="cut"))
    with pytest.raises(IncompleteRead):
        get(address)
    http_proxy.behave(Rule(harm="corrupt"))
    changed = get(address)
    assert sum(a != b for a, b in zip(changed, DATA, strict=True)) == 1
    http_proxy.behave(Rule(harm="stall"), stall_seconds=0.3)
    began = time.monotonic()
    with pytest.raises(RemoteDisconnected):
        get(address)
    assert time.monotonic() - began >= 0.3
    assert http_proxy.traffic().harmed == 1


def test_s3_is_found_by_the_usual_variables(bucket: str, s3: S3Server, s3_proxy: Proxy) -> None:
    s3.put(bucket.removeprefix("s3://"), "folder/object", DATA)
    system = fsspec.filesystem("s3", skip_instance_cache=True)
    assert system.cat_file(f"{bucket}/folder/object", start=3, end=7) == DATA[3:7]
    system.pipe_file(f"{bucket}/other", DATA)
    assert system.cat_file(f"{bucket}/other") == DATA
    traffic = s3_proxy.traffic()
    assert traffic.bytes_up == len(DATA)
    assert traffic.requests >= 3
