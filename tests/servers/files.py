"""A plain HTTP server of a folder, with range requests: ``python -m tests.servers.files FOLDER PORT``."""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from aiohttp import web

from tests.servers.processes import free_port, server


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
    app = web.Application()
    app.router.add_static("/", sys.argv[1], show_index=True)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[2]), print=None, access_log=None)
