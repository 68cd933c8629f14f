"""All errors that this project raises deliberately.

LabelPoolError                  base class of all
+-- InvalidBatchError           an invalid label batch (shape, dtype, range, NaN)
+-- InvalidArgumentError        an invalid option or argument
|   +-- UsageError              conflicting arguments, or a missing one
+-- MissingExtraError           an optional dependency is not installed
+-- PoolFormatError             not a pool, or one that this version cannot read
|   +-- NotAPoolError           the manifest is missing
|   +-- ManifestError           the manifest is invalid
+-- PoolCorruptError            a file of a pool is missing, truncated or changed
+-- PoolWriteError              the file system refused a write (full, read-only, permissions)
+-- StoreError                  remote storage is unreachable or refuses the request, or times out
+-- PoolConflictError           another process uses the directory, or other files are in the way
|   +-- StagingMismatchError    unfinished work of a different pool is in the way
+-- BatchNotFoundError          the pool has no such batch
+-- ImageMismatchError          the images are not the ones that were labelled
+-- ImageReadError              an image folder or an image in it cannot be read
+-- LabelSourceError            a label folder cannot be imported, or a pool cannot be exported to one
|   +-- LabelFileError          a label file is missing, corrupt or does not fit its folder
|       +-- UnsafePickleError   a label file contains more than data; none of its code was run
+-- ComputationError            a computation failed (values not finite, out of memory)
+-- WorkerDiedError             a worker process was killed or does not respond
+-- ClusterError                the cluster is missing or has no resources for the job

A message is one line: where (path, field), what was expected, what was found, what to do.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import partial

EXTRAS = {
    "torch": "torch",
    "torchvision": "torch",
    "safetensors": "torch",
    "ray": "ray",
    "matplotlib": "demo",
    "mlxtend": "demo",
    "huggingface_hub": "hub",
}
"""Name of a top-level module -> extra of `pyproject.toml` that installs the module."""
_HIDDEN = "..."
_SECRETS = re.compile(r"(?<=://)[^/\s]*@|(?<=\?)[^\s'\"]+")


def without_secrets(text: str) -> str:
    """Return a text after removing passwords and query strings from the addresses in it."""
    if "://" not in text:
        return text
    return _SECRETS.sub(lambda found: f"{_HIDDEN}@" if found[0].endswith("@") else _HIDDEN, text)


def _one_line(where: str, problem: str, expected: str, got: str, hint: str) -> str:
    text = f"{where}: {problem}" if where else problem
    if expected and got:
        text += f" (expected {expected}, got {got})"
    elif expected:
        text += f" (expected {expected})"
    elif got:
        text += f" (got {got})"
    return f"{text}; {hint}" if hint else text


class LabelPoolError(Exception):
    """Base of all deliberate errors: the problem, where it is, expected and actual values, and what to do."""

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

    def parts(self) -> dict[str, str]:
        """Return the parts of the message as arguments for another error."""
        return {name: getattr(self, name) for name in ("problem", "where", "expected", "got", "hint")}

    def __reduce__(self) -> tuple[object, ...]:
        """Keep all parts of the message when a worker process sends the error."""
        return partial(type(self), **self.parts()), ()


class InvalidBatchError(LabelPoolError):
    """An invalid label batch."""


class InvalidArgumentError(LabelPoolError):
    """An invalid option or argument."""


class UsageError(InvalidArgumentError):
    """Conflicting arguments, or a missing argument."""


class MissingExtraError(LabelPoolError):
    """An optional dependency is not installed."""


class PoolFormatError(LabelPoolError):
    """Not a pool, or one that this version cannot read."""


class NotAPoolError(PoolFormatError):
    """The manifest is missing."""


class ManifestError(PoolFormatError):
    """The manifest is invalid."""


class PoolCorruptError(LabelPoolError):
    """A file of a pool is missing, truncated or changed."""


class PoolWriteError(LabelPoolError):
    """The file system refused a write."""


class StoreError(LabelPoolError):
    """Remote storage is unreachable, does not respond in time, or refuses the request."""


class PoolConflictError(LabelPoolError):
    """Another process uses the directory, or other files are in the way."""


class StagingMismatchError(PoolConflictError):
    """Unfinished work of a different pool is in the way."""


class BatchNotFoundError(LabelPoolError):
    """The pool has no such batch."""


class ImageMismatchError(LabelPoolError):
    """The images are not the ones that were labelled."""


class ImageReadError(LabelPoolError):
    """An image folder is missing or empty, or an image in it cannot be read."""


class LabelSourceError(LabelPoolError):
    """A label folder cannot be imported, or a pool cannot be exported to one."""


class LabelFileError(LabelSourceError):
    """A label file is missing, corrupt or does not fit its folder."""


class UnsafePickleError(LabelFileError):
    """A label file contains more than data; none of its code was run."""


class ComputationError(LabelPoolError):
    """A computation failed: values that are not finite, or no memory left."""


class WorkerDiedError(LabelPoolError):
    """A worker process was killed or does not respond."""


class ClusterError(LabelPoolError):
    """The cluster is missing or has no resources for the job."""


@contextlib.contextmanager
def extras_required() -> Iterator[None]:
    """Raise MissingExtraError, which names the extra to install, instead of ModuleNotFoundError."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            raise
        install = f"pip install 'lpld-labels[{EXTRAS[module]}]'"
        raise MissingExtraError(f"this needs {module}, which is not installed", hint=install) from None
