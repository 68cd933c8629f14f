"""Fixtures of the servers. One of each for a whole run: starting moto's takes seconds."""

import itertools
from collections.abc import Iterator

import pytest

from tests.servers.files import FileServer, file_server
from tests.servers.idle import wait_until_idle
from tests.servers.proxy import Proxy, proxy_of
from tests.servers.s3 import S3Server, environment, s3_server

_buckets = itertools.count(1)


@pytest.fixture(scope="session")
def running_s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(running_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A real S3 server that clients find by the usual variables."""
    for name, value in environment(running_s3.url).items():
        monkeypatch.setenv(name, value)
    return running_s3


@pytest.fixture(scope="session")
def s3_proxy_server(running_s3: S3Server) -> Iterator[Proxy]:
    with proxy_of(running_s3.port) as proxy:
        yield proxy


@pytest.fixture
def s3_proxy(s3: S3Server, s3_proxy_server: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the S3 server, which clients now find instead of it."""
    del s3
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_proxy_server.url)
    yield from _behaving(s3_proxy_server)


@pytest.fixture
def bucket(s3: S3Server) -> str:
    """Address of a bucket of its own: ``s3://name``."""
    return s3.make_bucket(f"bucket-{next(_buckets)}")


@pytest.fixture(scope="session")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    """A plain HTTP server with range requests; `add` puts folders on it."""
    with file_server(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture(scope="session")
def http_proxy_server(http: FileServer) -> Iterator[Proxy]:
    with proxy_of(http.port) as proxy:
        yield proxy


@pytest.fixture
def http_proxy(http_proxy_server: Proxy) -> Iterator[Proxy]:
    """A proxy before the HTTP server: the same paths below another address."""
    yield from _behaving(http_proxy_server)


def _behaving(proxy: Proxy) -> Iterator[Proxy]:
    wait_until_idle()
    proxy.behave()
    yield proxy
    proxy.behave()
