"""Sending a request again when its failure may pass, later and later."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from lpld_labels.errors import InvalidArgumentError, LabelPoolError
from lpld_labels.io.failures import as_store_error, is_missing, is_transient

log = logging.getLogger(__name__)
T = TypeVar("T")

TIMEOUT_VARIABLE = "LPLD_LABELS_TIMEOUT"
_TIMEOUT = 30.0


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to put up with a server.

    timeout: seconds without a byte, or without a connection, after which a request counts as failed.
    attempts: how often it is sent. wait: seconds before the second attempt; each further one waits twice as
    long, `longest_wait` at most, with a little chance so that clients do not come back all at once.
    """

    timeout: float = _TIMEOUT
    attempts: int = 6
    wait: float = 0.1
    longest_wait: float = 5.0

    @staticmethod
    def from_environment() -> Patience:
        """Return the usual patience, with the time-out that the environment asks for."""
        text = os.environ.get(TIMEOUT_VARIABLE, "")
        try:
            timeout = float(text or _TIMEOUT)
        except ValueError:
            timeout = 0.0
        if not timeout > 0:
            raise InvalidArgumentError("not a time-out", where=TIMEOUT_VARIABLE, expected="seconds", got=text)
        return Patience(timeout=timeout)

    def pause(self, attempt: int) -> float:
        """Return how long to wait behind an attempt, counted from 0."""
        longest = min(float(self.wait * 2**attempt), self.longest_wait)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311  # no secret, only less of a crowd


def persist(request: Callable[[], T], patience: Patience, *, where: str) -> T:
    """Return what a request gives, sent again while its failures may pass.

    Raises FileNotFoundError where there is no such file, and StoreError for all else. where: for messages.
    """
    for attempt in range(patience.attempts):
        try:
            return request()
        except LabelPoolError:
            raise
        except Exception as error:  # noqa: BLE001  # every client has a family of its own
            if is_missing(error):
                raise FileNotFoundError(where) from None
            if attempt + 1 == patience.attempts or not is_transient(error):
                raise as_store_error(error, where, attempt + 1) from None
            log.info("%s: %s, trying again", where, type(error).__name__)
        time.sleep(patience.pause(attempt))
    raise AssertionError("unreachable: the last attempt returns or raises")
