"""Servers as processes of their own on a free port of 127.0.0.1, ended with the test."""

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
_PATIENCE = 60.0


def free_port() -> int:
    """Return a port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def server(module: str, arguments: Sequence[object], port: int, *, health: str) -> Iterator[None]:
    """Run ``python -m module arguments`` until the block ends; it begins when the server answers.

    health: a path that is answered once the server is up.
    """
    words = [sys.executable, "-m", module, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    with subprocess.Popen(
        words, env=environment, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait(process, port, health)
            yield
        finally:
            process.kill()


def _wait(process: subprocess.Popen[bytes], port: int, health: str) -> None:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"server ended with exit code {process.returncode}: {process.args!r}")
        try:
            request(port, "GET", health)
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"server did not answer within {_PATIENCE} seconds: {process.args!r}")


def request(
    port: int, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """Send one request to a server on this machine and return the body of its answer."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        data = answer.read()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {data[:500]!r}")
        return data
