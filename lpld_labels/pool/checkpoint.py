"""Numbers that take long to compute, kept in the staging area until the pool is published.

Scoring and fitting read labels of a pool and come to arrays, step by step. Each array is a function of the
pool's content and of some settings, and of nothing else; so it is kept under just these, and whoever asks for
it with others, or with another version of the program, finds nothing. What has come together is written at
the pace of all commands, one file per array or sum, each with the digest of its bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lpld_labels.codecs.base import raw_bytes
from lpld_labels.codecs.fitting import Arrays
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.records import BatchKey
from lpld_labels.format.schema import STAGING_DIRECTORY
from lpld_labels.format.strict_json import from_json, to_json
from lpld_labels.io.storage import TEMPORARY, refuse_links, write_atomically, write_errors
from lpld_labels.pool.own_files import CHECKPOINT_DIRECTORY
from lpld_labels.pool.pace import Pace
from lpld_labels.version import __version__

log = logging.getLogger(__name__)

_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What the work for one pool has computed so far; a `Keeper`. One process at a time may work with it."""

    _files: _Files
    _facts: Mapping[str, Any]
    _places: dict[str, _Place] = field(default_factory=dict)

    @staticmethod
    def at(out: Path, source: str) -> Checkpoint:
        """Return the checkpoint of a pool to be, made of labels of the pool with this content digest."""
        refuse_links([out / STAGING_DIRECTORY, out / STAGING_DIRECTORY / CHECKPOINT_DIRECTORY])
        # Another NumPy may round otherwise: its sums are not to be mixed with ours.
        facts = {"source": source, "version": __version__, "numpy": np.__version__}
        return Checkpoint(_Files(out / STAGING_DIRECTORY), facts)

    def about(self, **facts: Any) -> Checkpoint:
        """Return this checkpoint for arrays that also depend on these settings, given as JSON values."""
        return Checkpoint(self._files, {**self._facts, **facts})

    def get(self, name: str) -> Arrays | None:
        """Return what was put under a name with the same settings, or None."""
        return self._files.read(self._place(name))

    def put(self, name: str, arrays: Arrays) -> None:
        """Keep arrays instead of those of that name; they are safe after the next save, which may be now.

        Arrays that grow or change in place are to be put again at once when they have.
        """
        self._files.write(self._place(name), arrays)

    def _place(self, name: str) -> _Place:
        """Return where arrays of a name are kept; sums are put there for every batch, so it is found once."""
        if name not in self._places:
            self._places[name] = self._files.place({**self._facts, "name": name})
        return self._places[name]

    def close(self) -> None:
        """Keep nothing from now on."""
        self._files.close()

    def discard(self) -> None:
        """Delete what was kept; the staging area goes too if there is nothing else in it."""
        self._files.discard()

    @contextlib.contextmanager
    def unless_refused(self) -> Iterator[Checkpoint]:
        """Leave nothing behind if what is asked for turns out to be impossible."""
        try:
            yield self
        except InvalidArgumentError:
            self.discard()
            raise


def keys_digest(keys: Iterable[BatchKey]) -> str:
    """Return what stands for batches, in their order, where settings are compared."""
    return bytes_digest(np.array([*keys], "<i8").tobytes())


class _Place(NamedTuple):
    """The file of some arrays, and all that they depend on."""

    path: Path
    facts: dict[str, Any]


class _Files:
    """The files of a checkpoint, and what waits to be written to them."""

    def __init__(self, staging: Path) -> None:
        self._staging = staging
        self._directory = staging / CHECKPOINT_DIRECTORY
        self._pace = Pace()
        self._waiting: dict[Path, tuple[_Place, Arrays]] = {}
        self._closed = False

    def place(self, facts: dict[str, Any]) -> _Place:
        return _Place(self._directory / bytes_digest(to_json(facts))[:32], facts)

    def read(self, place: _Place) -> Arrays | None:
        if place.path in self._waiting:
            return self._waiting[place.path][1]
        if not place.path.is_file():
            return None
        try:
            found, arrays = _parsed(place.path.read_bytes(), where=str(place.path))
        except ValueError:
            log.warning("%s is damaged; what it held is computed again", place.path)
            return None
        return arrays if found == place.facts else None

    def write(self, place: _Place, arrays: Arrays) -> None:
        if self._closed:
            return
        self._waiting[place.path] = place, arrays
        if self._pace.due():
            self._save()

    def _save(self) -> None:
        with write_errors(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
        for place, arrays in self._waiting.values():
            write_atomically(place.path, *_parts(place.facts, arrays), within=self._staging)
        self._waiting.clear()
        self._pace.saved()

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()

    def discard(self) -> None:
        self.close()
        if not self._directory.exists():
            return
        with write_errors(self._directory):
            shutil.rmtree(self._directory)
            with contextlib.suppress(OSError):
                self._staging.rmdir()


def is_all_there_is(out: Path) -> bool:
    """Whether a directory holds nothing, or nothing but a checkpoint."""
    staging = out / STAGING_DIRECTORY
    return all(entry == staging for entry in out.iterdir()) and all(
        entry.name == CHECKPOINT_DIRECTORY or entry.name.startswith(TEMPORARY)
        for entry in (staging.iterdir() if staging.is_dir() else ())
    )


def _parts(facts: dict[str, Any], arrays: Arrays) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file: the length of a JSON header, header, arrays, the digest of it all."""
    shapes = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    header = to_json({"facts": facts, "arrays": shapes})
    state = hashlib.sha256()
    for part in (len(header).to_bytes(8, "little"), header):
        state.update(part)
        yield part
    for name in sorted(arrays):
        values = raw_bytes(arrays[name])
        state.update(values)
        yield values
    yield state.digest()


def _parsed(data: bytes, *, where: str) -> tuple[dict[str, Any], Arrays]:
    """Return facts and arrays of a file; raise ValueError if it is not as it was written."""
    body, digest = memoryview(data)[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("digest differs")
    start = 8 + int.from_bytes(body[:8], "little")
    document = from_json(bytes(body[8:start]), where=where)
    arrays = {}
    for name, (dtype, shape) in sorted(document["arrays"].items()):
        end = start + math.prod(shape) * np.dtype(dtype).itemsize
        # Copied: sums go on in place.
        arrays[name] = np.frombuffer(body[start:end], dtype).reshape(shape).copy()
        start = end
    return document["facts"], arrays
