"""Whoever writes a pool reads its description first: what no reader takes is never published."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict

from lpld_labels.errors import InvalidArgumentError, ManifestError
from lpld_labels.format.json_fields import FieldReader
from lpld_labels.format.manifest import Manifest, PoolHeader
from lpld_labels.format.strict_json import from_json, to_json


def require_readable(header: PoolHeader, *, where: object) -> None:
    """Refuse, before any work is done, a header that no reader would take. where: the pool to be."""
    with _told_to_the_writer():
        document = from_json(to_json(asdict(header)), where=str(where))
        PoolHeader.parse(FieldReader(document, where=str(where)))


def readable_text(manifest: Manifest, *, where: object) -> bytes:
    """Return a manifest's text, known to be readable, for whoever is about to publish it."""
    with _told_to_the_writer():
        text = manifest.dump()
        Manifest.parse(text, where=str(where))
        return text


@contextlib.contextmanager
def _told_to_the_writer() -> Iterator[None]:
    """A reader blames the file; there is none yet, and what is wrong was given to the writer."""
    try:
        yield
    except ManifestError as error:
        raise InvalidArgumentError(
            f"no reader would take this pool: {error.problem}",
            where=error.where,
            expected=error.expected,
            got=error.got,
            hint="nothing was published",
        ) from None
