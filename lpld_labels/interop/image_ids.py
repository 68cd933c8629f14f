"""Image ids that are not in label files: drawn by PyTorch's sampler, or stored in a JSON file of lists.

SRe2L and its descendants draw ids with ``RandomSampler(dataset, generator)``, one generator for all epochs.
PyTorch until 1.10 draws one permutation per epoch. PyTorch since 1.11 also draws a second permutation, for
samples beyond a multiple of the dataset's size; here it is discarded. A permutation is ``torch.randperm`` on
the CPU: a Fisher-Yates shuffle that takes 32 bits of MT19937 per step, modulo the number of elements left.

LPLD and LPQLD write ``{"0": [6, 33, ...], "1": [...]}``, keyed by epoch or batch number. A file can hold
tens of millions of ids, so lists are converted on access. HALD saves the same with torch.save.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from lpld_labels.errors import InvalidArgumentError, LabelSourceError
from lpld_labels.format.limits import MAX_INDEX
from lpld_labels.format.records import IntArray
from lpld_labels.interop.settings import DEFAULT_SAMPLER_SEED
from lpld_labels.interop.torch_file import read_id_lists
from lpld_labels.io.random_access import read_regular

Era = Literal["old", "new"]
ERAS: Mapping[Era, str] = {"new": "PyTorch >= 1.11", "old": "PyTorch < 1.11"}

MAX_IMAGES = (2**32 - 1) // 20  # PyTorch draws 64 bits per step for more images.


class SampledOrders:
    """The image ids of any epoch in sampling order. Access is fastest in ascending order of epochs."""

    def __init__(self, count: int, *, era: Era = "new", seed: int = DEFAULT_SAMPLER_SEED) -> None:
        if not 1 <= count <= MAX_IMAGES:
            raise InvalidArgumentError(
                "cannot reproduce the sampling order", expected=f"1 to {MAX_IMAGES} images", got=count
            )
        self._count, self._seed = count, seed
        self._drawn = 2 if era == "new" else 1
        self._generator = _torch_generator(seed)
        self._epoch = -1
        self._order = np.empty(0, np.int32)

    def __getitem__(self, epoch: int) -> IntArray:
        """Return int32 [count]: what ``torch.randperm(count, generator=g)`` gives for this epoch."""
        if epoch < self._epoch:
            self._generator, self._epoch = _torch_generator(self._seed), -1
        if epoch > self._epoch:
            steps = self._count - 1  # A step takes 32 bits.
            self._generator.random_raw((epoch - self._epoch - 1) * self._drawn * steps, output=False)
            places_left = np.arange(self._count, 1, -1, dtype=np.uint64)
            order = list(range(self._count))
            for i, step in enumerate((self._generator.random_raw(steps) % places_left).tolist()):
                order[i], order[i + step] = order[i + step], order[i]
            self._generator.random_raw((self._drawn - 1) * steps, output=False)
            self._order, self._epoch = np.array(order, np.int32), epoch
        return self._order


def _torch_generator(seed: int) -> np.random.MT19937:
    """Return MT19937 seeded as ``torch.Generator().manual_seed`` does: by the lower 32 bits."""
    seeded = np.random.RandomState(seed % 2**32).get_state(legacy=False)
    generator = np.random.MT19937()
    generator.state = {"bit_generator": "MT19937", "state": seeded["state"]}
    return generator


MAX_LISTS = 1 << 21  # ImageNet-21K, labelled for 300 epochs in batches of 100, has 1.5 million.
MAX_LIST_FILE_BYTES = 1 << 31
_NUMBER = re.compile(r"0|[1-9]\d{0,8}")
_Ids = list[Annotated[int, msgspec.Meta(ge=0, le=MAX_INDEX)]]


class IdLists:
    """The lists of image ids in a file, by epoch or batch number. Pickling keeps only the path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = -1, np.empty(0, np.int32)
        if path.suffix == ".pt":
            self._lists: dict[int, Any] = self._by_number(read_id_lists(path))
            return
        try:
            data = read_regular(path, most=MAX_LIST_FILE_BYTES)
        except OSError as error:
            raise self._error(f"cannot read image ids: {error.strerror}") from None
        count = data.count(b"]")
        if count > MAX_LISTS:
            raise LabelSourceError("too many lists of image ids", where=path, expected=f"at most {MAX_LISTS}")
        try:
            lists = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._error(f"image ids are damaged: {error}") from None
        if len(lists) != count:
            raise self._error("image ids are damaged: a number occurs twice, or lists are nested")
        self._lists = self._by_number(lists)

    def _by_number(self, lists: Mapping[str, Any]) -> dict[int, Any]:
        wrong = [name for name in lists if not _NUMBER.fullmatch(name)]
        if wrong or not lists:
            raise self._error(f"image ids are damaged: '{wrong[0][:20] if wrong else ''}' is not a number")
        return {int(name): lists[name] for name in sorted(lists, key=int)}

    def __reduce__(self) -> tuple[Any, ...]:
        return IdLists, (self.path,)

    def _error(self, problem: str) -> LabelSourceError:
        return LabelSourceError(
            problem, where=self.path, expected='{"number": [ids...], ...}', hint="restore this file"
        )

    @property
    def numbers(self) -> list[int]:
        return list(self._lists)

    def __getitem__(self, number: int) -> IntArray:
        """Return the image ids of an epoch or batch: int32 [n]."""
        if self._last[0] != number:
            try:
                found = self._lists[number]
                is_json = isinstance(found, msgspec.Raw)
                ids = msgspec.json.decode(found, type=_Ids) if is_json else msgspec.convert(found, _Ids)
            except msgspec.DecodeError as error:
                raise self._error(f"image ids of '{number}' are damaged: {error}") from None
            self._last = number, np.array(ids, np.int32)
        return self._last[1]
