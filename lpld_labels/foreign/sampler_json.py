"""Image ids that LPLD and LPQLD write beside their labels: ``{"0": [6, 33, ...], "1": [...]}``.

The key is an epoch (LPLD) or a batch (LPQLD). A file can hold tens of millions of ids, so it is
mapped, not read: only the list that is asked for becomes numbers.
"""

from __future__ import annotations

import json
import mmap
import re
from pathlib import Path

import numpy as np

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.records import MAX_INDEX, IntArray

MAX_LISTS = 1 << 21
"""ImageNet-21K with 50 images a class, in batches of 100 for 300 epochs, has one and a half million."""
_LIST = re.compile(rb'\s*"(\d{1,9})"\s*:\s*(\[[\d,\s]*\])\s*')


class SamplerIds:
    """The lists of one file, by key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as stream:
                self._data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise LabelSourceError(f"cannot read image ids: {error}", where=path) from None
        self._spans = self._find_lists()

    def _find_lists(self) -> dict[int, tuple[int, int]]:
        spans: dict[int, tuple[int, int]] = {}
        place, separator = 0, b"{"
        while self._data[place : place + 1] == separator:
            found = _LIST.match(self._data, place + 1)
            if found is None:
                break
            number = int(found[1])
            if number in spans:
                raise LabelSourceError(f"image ids of '{number}' are there twice", where=self.path)
            if len(spans) == MAX_LISTS:
                raise LabelSourceError("too many lists of image ids", where=self.path, expected=MAX_LISTS)
            spans[number] = found.span(2)
            place, separator = found.end(), b","
        if not spans or self._data[place:].strip() != b"}":
            raise LabelSourceError(
                "image ids are damaged",
                where=self.path,
                expected='{"number": [ids...], ...}',
                got=f"something else at byte {place}",
                hint="restore this file",
            )
        return dict(sorted(spans.items()))

    @property
    def keys(self) -> list[int]:
        """Keys in order."""
        return list(self._spans)

    def count(self, key: int) -> int:
        """Return how many ids a list has."""
        start, end = self._spans[key]
        text = self._data[start + 1 : end - 1]
        return text.count(b",") + 1 if text.strip() else 0

    def ids(self, key: int) -> IntArray:
        """Return the ids of one list: int32 [n]."""
        start, end = self._spans[key]
        try:
            numbers = json.loads(self._data[start:end])
        except ValueError as error:  # also of a number with thousands of digits
            raise LabelSourceError(
                f"image ids of '{key}' are damaged: {error}", where=self.path, hint="restore this file"
            ) from None
        if numbers and max(numbers) > MAX_INDEX:
            raise LabelSourceError(
                f"image ids of '{key}' are damaged", where=self.path, expected=f"<= {MAX_INDEX}"
            )
        return np.array(numbers, np.int32)
