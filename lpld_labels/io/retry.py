"""Retry requests, and describe permanent failures.

Clients raise their own errors, often chained. Errors are classified by status code and class name, so that no
client has to be imported. Retries inside clients are disabled: a client would not notice wrong bytes.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from lpld_labels.errors import InvalidArgumentError, LabelPoolError, StoreError, without_secrets

log = logging.getLogger(__name__)
T = TypeVar("T")

REQUESTS_AT_ONCE = 32
TIMEOUT_VARIABLE = "LPLD_LABELS_TIMEOUT"
_TIMEOUT = 30.0
ATTEMPTS = 6
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0

_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
_TRANSIENT_ERRNO = {errno.EBUSY, errno.EREMOTEIO, errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT}
_TRANSIENT_CODES = {"SlowDown", "InternalError", "RequestTimeout", "ServiceUnavailable", "BadDigest"}
_TRANSIENT_NAMES = {
    "ClientConnectionError",
    "ClientPayloadError",
    "HTTPClientError",
    "IncompleteReadError",
    "ProtocolError",
    "ResponseParserError",
    "TimeoutError",
    "TransportError",
}
_UNREACHABLE_NAMES = {
    "ClientConnectorError",
    "ConnectError",
    "ConnectionRefusedError",
    "EndpointConnectionError",
    "NewConnectionError",
    "ProxyError",
}
_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "TokenRetrievalError",
}
_LONGEST = 200


class ShortReadError(OSError):
    """A server sent or stored the wrong bytes."""


def request_timeout() -> float:
    """Return the request timeout: the longest wait in seconds for a connection or for data."""
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        timeout = float(text or _TIMEOUT)
    except ValueError:
        timeout = 0.0
    if not timeout > 0:
        raise InvalidArgumentError("not a timeout", where=TIMEOUT_VARIABLE, expected="seconds > 0", got=text)
    return timeout


def retry(request: Callable[[], T], *, where: str, attempts: int = ATTEMPTS) -> T:
    """Send a request and return its result; retry after transient errors.

    Raises FileNotFoundError if the file is missing, StoreError for other failures. where: address for errors.
    """
    attempt = 0
    while True:
        attempt += 1
        try:
            return request()
        except LabelPoolError:
            raise
        except Exception as error:  # noqa: BLE001  # every client has its own exceptions
            # A missing bucket is a mistake in the address, not a missing file.
            missing = isinstance(error, FileNotFoundError) or status_of(error) in (404, 410)
            if missing and code_of(error) != "NoSuchBucket":
                raise FileNotFoundError(where) from None
            if attempt == attempts or not is_transient(error):
                problem, hint = _diagnosis(error)
                tried = f" (tried {attempt} times)" if attempt > 1 else ""
                raise StoreError(f"{problem}{tried}", where=where, hint=hint) from None
            log.info("%s: %s, retrying", where, type(error).__name__)
        pause = min(_FIRST_PAUSE * 2 ** (attempt - 1), _LONGEST_PAUSE)
        # Add jitter, so that clients do not all retry at once.
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  # no secret


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    return chain


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for link in _chain(error) for kind in type(link).__mro__}


def _answer(error: BaseException) -> dict[str, Any]:
    """Return the response stored in a botocore error, or {}."""
    responses = (getattr(link, "response", None) for link in _chain(error))
    return next((response for response in responses if isinstance(response, dict)), {})


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error, or None."""
    found = [_answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode")]
    found += [getattr(link, "status", None) for link in _chain(error)]
    found += [getattr(getattr(link, "response", None), "status_code", None) for link in _chain(error)]
    return next((status for status in found if isinstance(status, int)), None)


def code_of(error: BaseException) -> str:
    """Return the S3 error code of an error, or an empty string."""
    return str(_answer(error).get("Error", {}).get("Code", ""))


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later."""
    status = status_of(error)
    if status is not None:
        return status in _TRANSIENT_STATUS or code_of(error) in _TRANSIENT_CODES
    if isinstance(error, FileNotFoundError | PermissionError):
        return False
    for link in _chain(error):
        if isinstance(link, TimeoutError | ConnectionError | ShortReadError):
            return True
        if getattr(link, "errno", None) in _TRANSIENT_ERRNO:
            return True
    return bool(_names(error) & (_TRANSIENT_NAMES | _UNREACHABLE_NAMES))


def _diagnosis(error: BaseException) -> tuple[str, str]:
    names, status, code = _names(error), status_of(error), code_of(error)
    text = " ".join(without_secrets(str(error)).split())[:_LONGEST]
    said = f"{code or status}: {text}" if code or status else text
    denied = status in (401, 403) or isinstance(error, PermissionError)
    where_set = "set them, e.g. in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or ~/.aws"
    ranges = "try again, or copy the pool (lpld-labels copy) and read the copy"
    slow = f"try again, or set a longer timeout ({TIMEOUT_VARIABLE}, in seconds)"
    cases = (
        (names & _CREDENTIALS, "no credentials found", where_set),
        (code == "NoSuchBucket", "bucket does not exist", "check its name, region and endpoint"),
        (denied, "access is denied", "check the credentials and their permissions"),
        (status in (405, 501), "the server does not allow this", "write to a store that accepts uploads"),
        (names & _UNREACHABLE_NAMES, "the server cannot be reached", "check the address and the network"),
        ("TimeoutError" in names, "the server does not respond", slow),
        (isinstance(error, ShortReadError), text, ranges),
        (True, f"request failed: {said or type(error).__name__}", "try again"),
    )
    return next((problem, hint) for applies, problem, hint in cases if applies)
