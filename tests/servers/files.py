"""A plain HTTP server of a folder, with range requests: ``python -m tests.servers.files FOLDER PORT``."""

import contextlib
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

from tests.servers.processes import free_port, server

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class RangeHandler(SimpleHTTPRequestHandler):
    """Files and ranges of files; connections are kept open."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send a file or the range of it that was asked for."""
        if self.answered():
            return
        path = Path(self.translate_path(self.path))
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        if wanted is None or not path.is_file():
            super().do_GET()
            return
        size = path.stat().st_size
        start, stop = int(wanted[1]), min(int(wanted[2] or size), size - 1) + 1
        if start >= size:
            self.send_error(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            return
        self.send_response(HTTPStatus.PARTIAL_CONTENT)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        with path.open("rb") as stream:
            self.wfile.flush()
            self.connection.sendfile(stream, start, stop - start)

    def answered(self) -> bool:
        """Answer what is no question for a file; return whether it was not."""
        return False

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Say nothing."""


@dataclass(frozen=True)
class FileServer:
    """A running server of `folder`."""

    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, folder: Path, name: str) -> str:
        """Copy a folder to the server under a name and return its address."""
        shutil.copytree(folder, self.folder / name)
        return f"{self.url}/{quote(name)}"


@contextlib.contextmanager
def file_server(folder: Path) -> Iterator[FileServer]:
    """Serve a folder until the block ends."""
    port = free_port()
    with server("tests.servers.files", [folder, port], port, health="/"):
        yield FileServer(port, folder)


if __name__ == "__main__":
    handler = partial(RangeHandler, directory=sys.argv[1])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), handler).serve_forever()
