"""Repeating requests whose failure may pass, and what to tell about those that were given up.

Clients raise classes of their own (urllib3's, botocore's, the operating system's), often one behind another.
They are classified by status codes and names, so that no client has to be imported. One loop here serves all
clients: what is wrong with the bytes of an answer, no client's own retries would notice.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from lpld_labels.errors import InvalidArgumentError, LabelPoolError, StoreError, without_secrets

log = logging.getLogger(__name__)
T = TypeVar("T")

TIMEOUT_VARIABLE = "LPLD_LABELS_TIMEOUT"
_TIMEOUT = 30.0

PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}
_PASSING_ERRNO = {errno.EBUSY, errno.EREMOTEIO, errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT}
_PASSING_CODES = {"SlowDown", "InternalError", "RequestTimeout", "ServiceUnavailable", "BadDigest"}
_PASSING_NAMES = {
    "ClientConnectionError",
    "ClientPayloadError",
    "ConnectionClosedError",
    "FSTimeoutError",
    "HTTPClientError",
    "IncompleteReadError",
    "ResponseParserError",
    "ResponseStreamingError",
    "ProtocolError",
    "ServerDisconnectedError",
    "TimeoutError",
}
_UNREACHABLE_NAMES = {
    "ClientConnectorError",
    "ConnectionRefusedError",
    "EndpointConnectionError",
    "NewConnectionError",
    "ProxyError",
}
_CREDENTIAL_NAMES = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "TokenRetrievalError",
}
_LONGEST = 200


REQUESTS_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How long to try.

    timeout: seconds without a byte, or without a connection, after which a request counts as failed.
    attempts: how often it is sent. wait: seconds before the second attempt; each further one waits twice as
    long, `longest_wait` at most, with a little chance so that clients do not come back all at once.
    """

    timeout: float = _TIMEOUT
    attempts: int = 6
    wait: float = 0.1
    longest_wait: float = 5.0

    @staticmethod
    def from_environment() -> RetryPolicy:
        """Return the usual policy, with the time-out that the environment asks for."""
        text = os.environ.get(TIMEOUT_VARIABLE, "")
        try:
            timeout = float(text or _TIMEOUT)
        except ValueError:
            timeout = 0.0
        if not timeout > 0:
            raise InvalidArgumentError("not a time-out", where=TIMEOUT_VARIABLE, expected="seconds", got=text)
        return RetryPolicy(timeout=timeout)

    def pause(self, attempt: int) -> float:
        """Return how long to wait behind an attempt, counted from 0."""
        longest = min(float(self.wait * 2**attempt), self.longest_wait)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311  # no secret, only less of a crowd


def retry(request: Callable[[], T], policy: RetryPolicy, *, where: str) -> T:
    """Return what a request gives, sent again while its failures are transient.

    Raises FileNotFoundError where there is no such file, and StoreError for all else. where: for messages.
    """
    for attempt in range(policy.attempts):
        try:
            return request()
        except LabelPoolError:
            raise
        except Exception as error:  # noqa: BLE001  # every client has a family of its own
            if is_missing(error):
                raise FileNotFoundError(where) from None
            if attempt + 1 == policy.attempts or not is_transient(error):
                raise _store_error(error, where, attempt + 1) from None
            log.info("%s: %s, trying again", where, type(error).__name__)
        time.sleep(policy.pause(attempt))
    raise AssertionError("unreachable: the last attempt returns or raises")


class ShortReadError(OSError):
    """A server sent fewer or more bytes than it was asked for."""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for link in _chain(error) for kind in type(link).__mro__}


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status behind an error, if there is one."""
    for link in _chain(error):
        response = getattr(link, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            status = getattr(link, "status", None)
        if isinstance(status, int):
            return status
    return None


def code_of(error: BaseException) -> str:
    """Return S3's own word for an error, or nothing."""
    for link in _chain(error):
        response = getattr(link, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
    return ""


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed when it is sent again."""
    status = status_of(error)
    if status is not None:
        return status in PASSING_STATUS or code_of(error) in _PASSING_CODES
    if isinstance(error, FileNotFoundError | PermissionError):
        return False
    if any(isinstance(link, TimeoutError | ConnectionError | ShortReadError) for link in _chain(error)):
        return True
    if any(isinstance(link, OSError) and link.errno in _PASSING_ERRNO for link in _chain(error)):
        return True
    return bool(_names(error) & (_PASSING_NAMES | _UNREACHABLE_NAMES))


def is_missing(error: BaseException) -> bool:
    """Whether there is no such file, while there is a place where it could be."""
    if code_of(error) == "NoSuchBucket":
        return False
    return isinstance(error, FileNotFoundError) or status_of(error) in (404, 410)


def _store_error(error: BaseException, where: str, attempts: int) -> StoreError:
    """Return what to tell about a request that was given up."""
    problem, hint = _told(error)
    if attempts > 1:
        problem += f" (tried {attempts} times)"
    return StoreError(problem, where=where, hint=hint)


def _told(error: BaseException) -> tuple[str, str]:
    names, status, code = _names(error), status_of(error), code_of(error)
    text = " ".join(without_secrets(str(error)).split())[:_LONGEST]
    said = f"{code or status}: {text}" if code or status else text
    cases = (
        (
            names & _CREDENTIAL_NAMES,
            ("no credentials found", "set them where clients look, e.g. AWS_ACCESS_KEY_ID or ~/.aws"),
        ),
        (code == "NoSuchBucket", ("there is no such bucket", "check its name, region and endpoint")),
        (
            status in (401, 403) or isinstance(error, PermissionError),
            ("access is denied", "check the credentials, and what they allow here"),
        ),
        (status == 404 or isinstance(error, FileNotFoundError), ("nothing is here", "check the address")),
        (status in (405, 501), ("the server does not allow this", "write to a store that takes uploads")),
        (
            names & _UNREACHABLE_NAMES,
            ("the server cannot be reached", "check the address and the network"),
        ),
        (
            names & {"TimeoutError", "FSTimeoutError", "ReadTimeoutError"},
            ("the server does not answer", "try again, or allow more time (LPLD_LABELS_TIMEOUT, in seconds)"),
        ),
        (
            isinstance(error, ShortReadError),
            (text, "range requests are needed here: copy the pool (lpld-labels copy) and use the copy"),
        ),
    )
    otherwise = (f"the store failed: {said or type(error).__name__}", "try again")
    return next((told for applies, told in cases if applies), otherwise)
