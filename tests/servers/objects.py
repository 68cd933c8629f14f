"""Objects in folders, read as from S3: ``python -m tests.servers.objects FOLDER PORT``.

Folders below FOLDER are buckets. It answers what readers ask (an object, a range of one, a listing) and asks
nobody who they are. moto's server reads a whole object for every range of it, so that it, and not who
reads, sets the pace: benchmarks read from here.
"""

import contextlib
import hashlib
import sys
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from tests.servers.files import RangeHandler
from tests.servers.processes import free_port, server

_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'


class ObjectHandler(RangeHandler):
    """GET and HEAD of objects, and ListObjectsV2 in one page."""

    def answered(self) -> bool:
        """Send a listing if the path is a bucket, and what S3 says where there is nothing."""
        place = urlsplit(self.path)
        bucket, _, key = place.path.lstrip("/").partition("/")
        if not key:
            self._list(bucket, parse_qs(place.query).get("prefix", [""])[0])
        elif not Path(self.translate_path(self.path)).is_file():
            self._send_xml("<Error><Code>NoSuchKey</Code></Error>", HTTPStatus.NOT_FOUND)
        else:
            return False
        return True

    def end_headers(self) -> None:
        """Name the version of an object, as clients expect."""
        self.send_header("ETag", f'"{hashlib.sha256(self.path.encode()).hexdigest()[:32]}"')
        super().end_headers()

    def _list(self, bucket: str, prefix: str) -> None:
        root = Path(self.directory) / bucket
        names = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
        entries = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{names[name].stat().st_size}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
            for name in sorted(names)
            if name.startswith(prefix)
        )
        self._send_xml(
            f"<ListBucketResult><Name>{escape(bucket)}</Name><IsTruncated>false</IsTruncated>"
            f"{entries}</ListBucketResult>"
        )

    def _send_xml(self, text: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        data = (_XML + text).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextlib.contextmanager
def object_server(folder: Path) -> Iterator[int]:
    """Serve the buckets in a folder until the block ends; gives the port."""
    port = free_port()
    with server("tests.servers.objects", [folder, port], port, health="/?list-type=2"):
        yield port


if __name__ == "__main__":
    handler = partial(ObjectHandler, directory=sys.argv[1])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), handler).serve_forever()
