"""Objects in folders, read as from S3: ``python -m tests.servers.objects FOLDER PORT``.

Folders below FOLDER are buckets. It answers what readers ask (an object, a range of one, a listing in one
page) and asks nobody who they are. moto's server reads a whole object for every range of it, so that it, and
not who reads, sets the pace: benchmarks read from here.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from aiohttp import web

from tests.servers.processes import free_port, server

_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'


async def _answer(asked: web.Request) -> web.StreamResponse:
    root = Path(sys.argv[1])
    bucket, _, key = asked.path.lstrip("/").partition("/")
    if not key:
        return _xml(_listing(root / bucket, asked.query.get("prefix", "")))
    path = root / bucket / key
    return web.FileResponse(path) if path.is_file() else _xml("<Error><Code>NoSuchKey</Code></Error>", 404)


def _listing(bucket: Path, prefix: str) -> str:
    names = {path.relative_to(bucket).as_posix(): path for path in bucket.rglob("*") if path.is_file()}
    entries = "".join(
        f"<Contents><Key>{escape(name)}</Key><Size>{names[name].stat().st_size}</Size>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
        for name in sorted(names)
        if name.startswith(prefix)
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"


def _xml(text: str, status: int = 200) -> web.Response:
    return web.Response(text=_XML + text, status=status, content_type="application/xml")


@contextlib.contextmanager
def object_server(folder: Path) -> Iterator[int]:
    """Serve the buckets in a folder until the block ends; gives the port."""
    port = free_port()
    with server("tests.servers.objects", [folder, port], port, health="/?list-type=2"):
        yield port


if __name__ == "__main__":
    app = web.Application()
    app.router.add_get("/{path:.*}", _answer)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[2]), print=None, access_log=None)
