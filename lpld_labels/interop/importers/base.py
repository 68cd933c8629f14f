"""What every label format provides, and what it works with.

A format says whether a folder is one of its kind, plans the import (what the pool will be, which
files become which batches) and reads one unit of the plan. Planning happens once; reading happens
anywhere: in this process or in many.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from lpld_labels.codecs import Codec
from lpld_labels.errors import InvalidArgumentError, LabelPoolError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.limits import MAX_BATCH_SIZE, MAX_CLASSES, MAX_SEED, MAX_SIDE
from lpld_labels.format.manifest import EnsembleRule, PoolHeader, require_normalisation
from lpld_labels.format.records import BatchKey, IntArray
from lpld_labels.format.strict_json import is_text
from lpld_labels.interop.label_folder import LabelFolder
from lpld_labels.interop.sampler import DEFAULT_SEED, Era
from lpld_labels.pool.shard import EncodedBatch


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What a folder does not say about itself; None where it shall be found out or assumed.

    classes: number of label columns. output_size: side of a view in pixels.
    torch_era, sampler_seed: how image ids were drawn that are not stored (see sampler.py).
    teachers: names of the networks that labelled. mean, std: their normalisation.
    ensemble: how the logits of several became one label (G-VBSM).
    temperature: of the softmax that gave stored probabilities (FKD).
    batch_size: rows of a batch where the folder has no batches (FKD).
    allow_extra_images: accept an image folder with more images than the labels speak of.
    What a pool cannot say is refused at once.
    """

    classes: int | None = None
    output_size: int | None = None
    torch_era: Era | Literal["auto"] = "auto"
    sampler_seed: int = DEFAULT_SEED
    teachers: tuple[str, ...] = ()
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    ensemble: EnsembleRule | None = None
    temperature: float = 1.0
    batch_size: int = 128
    allow_extra_images: bool = False

    def __post_init__(self) -> None:
        for name, least, most in (
            ("classes", 2, MAX_CLASSES),
            ("output_size", 1, MAX_SIDE),
            ("batch_size", 1, MAX_BATCH_SIZE),
            ("sampler_seed", -(2**63), MAX_SEED),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise self._wrong(name, f"{least} to {most}")
        if not 0 < self.temperature < math.inf:
            raise self._wrong("temperature", "a number above 0")
        if not all(is_text(name) for name in self.teachers):
            raise self._wrong("teachers", "names that are text")
        if self.mean is not None and self.std is not None:
            require_normalisation(self.mean, self.std)
        elif self.mean is not None or self.std is not None:
            raise InvalidArgumentError("the normalisation is not whole", hint="give both mean and std")

    def _wrong(self, name: str, expected: str) -> InvalidArgumentError:
        got = getattr(self, name)
        return InvalidArgumentError(f"{name.replace('_', ' ')} is wrong", expected=expected, got=got)


@dataclass(kw_only=True)
class Notes:
    """What an import learns on its way, one sentence each."""

    found: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, eq=False)
class Unit:
    """A piece of work that stands or falls as one.

    files: what is read. keys: the batches that come of it.
    images: int32, the image of every row (batch formats) or of every file (FKD); None where the
        file says it. rows: how many rows each batch must have.
    """

    files: tuple[Path, ...]
    keys: tuple[BatchKey, ...]
    images: IntArray | None
    rows: int


@dataclass(frozen=True, kw_only=True, eq=False)
class ImportTarget:
    """What reading needs to know about the pool to be."""

    header: PoolHeader
    codec: Codec
    images: ImageTable


@dataclass(frozen=True, kw_only=True, eq=False)
class ImportPlan:
    """What will be imported.

    batches: how many there should be, whether their files are there or not.
    units: yields the work in key order, made as it is asked for.
    missing: files that should be there and are not.
    parameters: what the pool's lineage records beside the format, as JSON values.
    """

    target: ImportTarget
    batches: int
    units: Callable[[], Iterator[Unit]]
    missing: tuple[Path, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)


OnBad = Callable[[Path, LabelPoolError], None]
"""Called with a file and what is wrong with it: raises, or returns to go on without the file."""


class LabelFormat(ABC):
    """One foreign format."""

    name: ClassVar[str]
    summary: ClassVar[str]

    @abstractmethod
    def recognises(self, folder: LabelFolder) -> bool:
        """Say whether the folder is of this format, from its layout and one of its files."""

    @abstractmethod
    def plan(
        self, folder: LabelFolder, images: ImageTable, options: ImportOptions, notes: Notes
    ) -> ImportPlan:
        """Decide what the pool will be; refuse folders and images that cannot belong together."""

    @abstractmethod
    def read(self, unit: Unit, target: ImportTarget, on_bad: OnBad) -> Iterator[EncodedBatch]:
        """Read the files of one unit and yield its batches; `on_bad` decides about files that are no use."""
