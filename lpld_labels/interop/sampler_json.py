"""Image ids that LPLD and LPQLD write beside their labels: ``{"0": [6, 33, ...], "1": [...]}``.

The key is an epoch (LPLD) or a batch (LPQLD). A file can hold tens of millions of ids, so it is not kept in
memory: only the list that is asked for is read and becomes numbers. It is not mapped either, because a mapped
file that somebody cuts off ends the process that looks at it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from lpld_labels.errors import LabelSourceError, PoolCorruptError
from lpld_labels.format.records import MAX_INDEX, IntArray
from lpld_labels.io.byte_access import LocalFile

MAX_LISTS = 1 << 21
"""ImageNet-21K with 50 images a class, in batches of 100 for 300 epochs, has one and a half million."""
_LIST = re.compile(rb'\s*([{,])\s*"(\d{1,9})"\s*:\s*(\[[\d,\s]*\])')
_CHUNK = 1 << 20


class SamplerIds:
    """The lists of one file, by key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = LocalFile(str(path))
        except OSError as error:
            raise self._error(f"cannot read image ids: {error.strerror}") from None
        self._spans = self._find_lists()

    def _find_lists(self) -> dict[int, tuple[int, int]]:
        """Return where each list is, having gone through the file once."""
        spans: dict[int, tuple[int, int]] = {}
        # What was read and is not yet understood, where in the file it begins, how far it was searched.
        text, place, searched = bytearray(), 0, 0
        separator = b"{"
        while place + len(text) < self._file.size or b"]" in text:
            stop = text.find(b"]", searched)
            if stop < 0:
                searched = len(text)
                start = place + len(text)
                text += self._read(start, min(start + _CHUNK, self._file.size))
                continue
            found = _LIST.match(text)
            if found is None or found[1] != separator:
                raise self._damaged(place)
            number = int(found[2])
            if number in spans:
                raise self._error(f"image ids of '{number}' are there twice")
            if len(spans) == MAX_LISTS:
                raise LabelSourceError("too many lists of image ids", where=self.path, expected=MAX_LISTS)
            start, end = found.span(3)
            spans[number] = (place + start, place + end)
            del found  # It holds on to the text.
            del text[:end]
            place, searched, separator = place + end, 0, b","
        if not spans or text.strip() != b"}":
            raise self._damaged(place)
        return dict(sorted(spans.items()))

    def _read(self, start: int, end: int) -> bytes:
        """Return a part of the file."""
        try:
            return self._file.read(start, end - start).to_pybytes()
        except PoolCorruptError as error:
            # It was cut off since it was opened, or its disk fails.
            raise self._error(f"cannot read image ids: {error.problem}") from None

    def _damaged(self, place: int) -> LabelSourceError:
        return LabelSourceError(
            "image ids are damaged",
            where=self.path,
            expected='{"number": [ids...], ...}',
            got=f"something else at byte {place}",
            hint="restore this file",
        )

    def _error(self, problem: str) -> LabelSourceError:
        return LabelSourceError(problem, where=self.path, hint="restore this file")

    @property
    def keys(self) -> list[int]:
        """Keys in order."""
        return list(self._spans)

    def count(self, key: int) -> int:
        """Return how many ids a list has."""
        start, end = self._spans[key]
        text = self._read(start + 1, end - 1)
        return text.count(b",") + 1 if text.strip() else 0

    def ids(self, key: int) -> IntArray:
        """Return the ids of one list: int32 [n]."""
        start, end = self._spans[key]
        try:
            numbers = json.loads(self._read(start, end))
        except ValueError as error:  # also of a number with thousands of digits
            raise self._error(f"image ids of '{key}' are damaged: {error}") from None
        if numbers and max(numbers) > MAX_INDEX:
            raise LabelSourceError(
                f"image ids of '{key}' are damaged", where=self.path, expected=f"<= {MAX_INDEX}"
            )
        return np.array(numbers, np.int32)
