"""Pool addresses: ``s3://bucket/pool``, ``https://host/pool``, any URL that fsspec opens, or a local path.

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
    """Return whether a location is the address of a remote store, not a local path."""
    scheme, separator, _ = os.fspath(location).partition("://")
    return bool(separator) and scheme != "file"


def local_path(location: Location) -> Path:
    """Return a local path or ``file://`` address as an absolute path."""
    text = os.fspath(location)
    if text.startswith("file://"):
        place = _split(text)
        if place.netloc not in ("", "localhost"):
            raise InvalidArgumentError("file:// address names a remote host", where=text)
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
    """Return a location without password and query, for messages and logs."""
    text = os.fspath(location)
    return without_secrets(text) if is_address(text) else text


def child(address: str, path: str) -> str:
    """Return the address of the file `path` below `address`, with the same query (e.g. a signature)."""
    base, question, query = address.partition("?")
    return f"{base.rstrip('/')}/{path}{question}{query}"


def normalize_url(address: str) -> str:
    """Return an address without trailing slashes and without ``/pool.json`` at its end."""
    parts = _split(address)
    path = re.sub(r"/+(pool\.json)?$", "", parts.path)
    if not parts.netloc and not path:
        raise InvalidArgumentError("address has neither a host nor a path", where=redact(address))
    return urlunsplit(parts._replace(path=path))
