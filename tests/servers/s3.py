"""A real S3 server, moto's, that keeps buckets in memory."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tests.servers.processes import free_port, request, server

ACCESS_KEY = "an-access-key"
SECRET_KEY = "a-secret-that-nobody-shall-see"  # noqa: S105  # made up; tests look for it in messages
SIGNED = {
    "Authorization": f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
}
"""The server asks who comes, since strangers may not replace what is there, but does not check it."""


@dataclass(frozen=True)
class S3Server:
    """A running server."""

    port: int

    @property
    def url(self) -> str:
        """The endpoint, as AWS_ENDPOINT_URL names it."""
        return f"http://127.0.0.1:{self.port}"

    def make_bucket(self, name: str) -> str:
        """Make a bucket and return its address."""
        request(self.port, "PUT", f"/{name}", headers=SIGNED)
        return f"s3://{name}"

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Store an object, whatever was there."""
        request(self.port, "PUT", f"/{bucket}/{quote(key)}", data, headers=SIGNED)

    def put_folder(self, bucket: str, prefix: str, folder: Path) -> None:
        """Store all files of a folder below a prefix."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(bucket, f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def require_credentials(self) -> None:
        """Refuse every request from now on whose credentials are not known: none are."""
        request(self.port, "POST", "/moto-api/reset-auth", b"0")


def environment(url: str) -> dict[str, str]:
    """Return the variables by which S3 clients find an endpoint and credentials."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server until the block ends."""
    port = free_port()
    with server("moto.server", ["-H", "127.0.0.1", "-p", port], port, health="/moto-api/"):
        yield S3Server(port)
