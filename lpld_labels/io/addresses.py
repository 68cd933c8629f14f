"""Addresses of pools: ``s3://bucket/pool``, ``https://host/pool``, anything fsspec opens; or a local path.

An address may contain credentials (a password, a signed query); messages, summaries and logs redact them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from lpld_labels.errors import InvalidArgumentError, without_secrets

Location = str | os.PathLike[str]


def is_address(location: Location) -> bool:
    """Whether a location names a server and not a path on this machine."""
    scheme, separator, _ = os.fspath(location).partition("://")
    return bool(separator) and scheme != "file"


def local_path(location: Location) -> Path:
    """Return a location on this machine as an absolute path."""
    text = os.fspath(location)
    if text.startswith("file://"):
        place = _split(text)
        if place.netloc not in ("", "localhost"):
            raise InvalidArgumentError("a file address names another machine", where=text)
        text = unquote(place.path)
    if "\0" in text:
        raise InvalidArgumentError("path contains a NUL character", where=repr(text))
    return Path(text).absolute()


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:
        raise InvalidArgumentError(f"invalid address: {error}", where=address) from None


def redact(location: Location) -> str:
    """Return a location without password and query, for messages."""
    text = os.fspath(location)
    return without_secrets(text) if is_address(text) else text


def child(address: str, path: str) -> str:
    """Return the address of a file below an address, with the same query (a signature)."""
    base, question, query = address.partition("?")
    return f"{base.rstrip('/')}/{path}{question}{query}"


def normalize_url(address: str) -> str:
    """Return an address without trailing slashes and the manifest's name."""
    parts = _split(address)
    path = re.sub(r"/+(pool\.json)?$", "", parts.path)
    if not parts.netloc and not path:
        raise InvalidArgumentError("address names no host or path", where=redact(address))
    return urlunsplit(parts._replace(path=path))
