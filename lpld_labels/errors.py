"""All errors that this project raises on purpose.

    LabelPoolError                  anything a caller may want to catch at once
    +-- InvalidBatchError           a label batch that must not be written (shape, dtype, range, NaN)
    +-- InvalidArgumentError        an option or argument outside what it allows
    +-- PoolFormatError             not a pool, or none that this version can read
    |   +-- NotAPoolError           no manifest where one was expected
    |   +-- ManifestError           the manifest is there and wrong
    +-- PoolCorruptError            a file is missing, truncated or its bytes changed
    +-- PoolWriteError              the file system refused (full, read-only, not ours)
    +-- StoreError                  storage elsewhere cannot be reached or refuses (credentials, time-out)
    +-- PoolConflictError           two writers, or a writer and the pool, disagree
    |   +-- StagingMismatchError    unfinished work of a different pool is in the way
    +-- BatchNotFoundError          the pool holds no such batch
    +-- ImageMismatchError          the images at hand are not the ones that were labelled
    +-- ImageReadError              an image folder or an image in it cannot be used
    +-- LabelSourceError            a foreign label folder cannot be imported, or a pool not exported to it
    |   +-- LabelFileError          one file of it is missing, damaged or not what its place says
    |       +-- UnsafePickleError   one file of it contains more than data; no code of it was run
    +-- ComputationError            a computation failed (values not finite, out of memory)
    +-- WorkerDiedError             a process that prepares batches was killed or does not answer
    +-- ClusterError                the cluster is missing or has no room for the work

A message is one line: where (path, field), what was expected, what was found, what to do.
"""

from __future__ import annotations

import re

_HIDDEN = "..."
_SECRETS = re.compile(r"(?<=://)[^/\s]*@|(?<=\?)[^\s'\"]+")


def without_secrets(text: str) -> str:
    """Remove passwords and query strings of addresses from a text."""
    if "://" not in text:
        return text
    return _SECRETS.sub(lambda found: f"{_HIDDEN}@" if found[0].endswith("@") else _HIDDEN, text)


def _one_line(where: str, problem: str, expected: str, got: str, hint: str) -> str:
    """Join the parts of a message, leaving out the empty ones."""
    text = f"{where}: {problem}" if where else problem
    if expected and got:
        text += f" (expected {expected}, got {got})"
    elif expected:
        text += f" (expected {expected})"
    elif got:
        text += f" (got {got})"
    return f"{text}; {hint}" if hint else text


class LabelPoolError(Exception):
    """Base of all deliberate errors: a problem with its place, facts and remedy."""

    def __init__(
        self, problem: str, *, where: object = "", expected: object = "", got: object = "", hint: str = ""
    ) -> None:
        # Addresses may contain passwords.
        self.problem = without_secrets(problem)
        self.where = without_secrets(str(where))
        self.expected = without_secrets(str(expected))
        self.got = without_secrets(str(got))
        self.hint = without_secrets(hint)
        super().__init__(_one_line(self.where, self.problem, self.expected, self.got, self.hint))

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the facts when the error travels out of a worker process."""
        return (_rebuild, (type(self), self.problem, self.where, self.expected, self.got, self.hint))


def _rebuild(
    kind: type[LabelPoolError], problem: str, where: str, expected: str, got: str, hint: str
) -> LabelPoolError:
    return kind(problem, where=where, expected=expected, got=got, hint=hint)


class InvalidBatchError(LabelPoolError):
    """A label batch that must not be written."""


class InvalidArgumentError(LabelPoolError):
    """An option or argument outside what it allows."""


class PoolFormatError(LabelPoolError):
    """Not a pool, or none that this version can read."""


class NotAPoolError(PoolFormatError):
    """No manifest where one was expected."""


class ManifestError(PoolFormatError):
    """The manifest is there and wrong."""


class PoolCorruptError(LabelPoolError):
    """A file of the pool is missing, truncated or its bytes changed."""


class PoolWriteError(LabelPoolError):
    """The file system refused a write."""


class StoreError(LabelPoolError):
    """Storage elsewhere cannot be reached, does not answer in time, or refuses."""


class PoolConflictError(LabelPoolError):
    """Two writers, or a writer and the pool, disagree."""


class StagingMismatchError(PoolConflictError):
    """Unfinished work of a different pool is in the way."""


class BatchNotFoundError(LabelPoolError):
    """The pool holds no such batch."""


class ImageMismatchError(LabelPoolError):
    """The images at hand are not the ones that were labelled."""


class ImageReadError(LabelPoolError):
    """An image folder is missing or empty, or a file in it is not a whole image."""


class LabelSourceError(LabelPoolError):
    """A foreign label folder cannot be imported, or a pool cannot be exported to one."""


class LabelFileError(LabelSourceError):
    """One file of a foreign label folder is missing, damaged or not what its place says."""


class UnsafePickleError(LabelFileError):
    """One file of a foreign label folder contains more than data; no code of it was run."""


class ComputationError(LabelPoolError):
    """A computation failed: values that are not finite, or no memory left."""


class WorkerDiedError(LabelPoolError):
    """A process that prepares batches was killed or does not answer."""


class ClusterError(LabelPoolError):
    """The cluster is missing or has no room for the work."""
