"""The one exception of this reader."""

from __future__ import annotations

from typing import NoReturn


class Refused(Exception):  # noqa: N818
    """A pool, or a part of it, that a reader must refuse; names the file and the field."""

    def __init__(self, file: str, field: str, why: str) -> None:
        """Keep the parts and make one message of them."""
        super().__init__(f"{file}: {field}: {why}")
        self.file = file
        self.field = field
        self.why = why


def refuse(file: str, field: str, why: str) -> NoReturn:
    """Raise `Refused`."""
    raise Refused(file, field, why)


def need(condition: object, file: str, field: str, why: str) -> None:
    """Raise `Refused` unless the condition holds."""
    if not condition:
        raise Refused(file, field, why)
