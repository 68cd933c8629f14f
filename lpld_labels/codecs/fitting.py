"""Keeping what a long computation has come to (goes with the checkpoint of the old pipeline)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]


class Keeper(Protocol):
    """Keeps what a long computation has come to, so that it can go on from there after an interruption."""

    def about(self, **facts: Any) -> Keeper:
        """Return the keeper of arrays that also depend on these settings, given as JSON values."""

    def get(self, name: str) -> Arrays | None:
        """Return what was put under a name with the same settings, or None."""

    def put(self, name: str, arrays: Arrays) -> None:
        """Keep arrays instead of those of that name.

        They may be written later: those that grow or change in place are to be put again at once.
        """


class KeepsNothing:
    """The keeper of work that may as well begin again."""

    def about(self, **facts: Any) -> Keeper:
        """Nothing depends on anything."""
        del facts
        return self

    def get(self, name: str) -> Arrays | None:
        """There is nothing."""
        del name
        return None

    def put(self, name: str, arrays: Arrays) -> None:
        """Let it go."""


NO_KEEPER = KeepsNothing()
