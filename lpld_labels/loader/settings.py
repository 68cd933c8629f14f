"""What one may ask of a loader: a settings object per kind of loader, each a superset of the one before.

An option is a field here and its use; the factories (`pool_loader`, `label_loader`, `sre2l_loader`)
take the fields as keywords.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, get_args, overload

import torch

from lpld_labels.codecs.label_semantics import check_temperature
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.io.disk_cache import CACHE_BYTES
from lpld_labels.loader.image_cache import MEMORY_BYTES

BatchFormat = Literal["batch", "dict", "tuple"]
Temperature = float | Callable[[int], float]
"""A number, or a function of the training epoch."""


@dataclass(frozen=True, kw_only=True)
class LabelSettings:
    """Options of every loader.

    policy, seed, batches_per_epoch: which label batches an epoch uses; see `lpld_labels.loader.sampling`.
    equal_epochs: leave out label batches that lack rows, so that all epochs have the same length; for
        trainers that ask for it once (Lightning, Hugging Face's Trainer).
    rank, world_size: which process of how many (ranks that shall see the same rows, as in tensor
        parallel training, get the same rank); from torch.distributed when an iteration starts unless
        given. See `lpld_labels.loader.share` for who gets what.
    num_workers, prefetch_factor, timeout, multiprocessing_context: as for DataLoader. Workers stay.
    cache_directory: keep there what is fetched of a pool at an address, for later epochs and runs; by default
        in $LPLD_LABELS_CACHE or below ~/.cache. cache_bytes: how much of it, the oldest going first.
    """

    policy: str = "shuffled"
    seed: int = 0
    batches_per_epoch: int | None = None
    equal_epochs: bool = False
    rank: int | None = None
    world_size: int | None = None
    num_workers: int = 0
    prefetch_factor: int = 2
    timeout: float = 0
    multiprocessing_context: Any = None
    cache_directory: str | os.PathLike[str] | None = None
    cache_bytes: int = CACHE_BYTES

    def __post_init__(self) -> None:
        if self.num_workers < 0 or self.prefetch_factor < 1:
            raise InvalidArgumentError(
                "number of workers or prefetch factor is out of range",
                expected="num_workers >= 0 and prefetch_factor >= 1",
                got=f"{self.num_workers} and {self.prefetch_factor}",
            )
        if (self.rank is None) != (self.world_size is None):
            raise InvalidArgumentError(
                "give rank and world_size together", got=f"{self.rank} and {self.world_size}"
            )
        if self.rank is not None and self.world_size is not None and not 0 <= self.rank < self.world_size:
            raise InvalidArgumentError(
                "rank is out of range", expected=f"0 to {self.world_size - 1}", got=self.rank
            )

    @property
    def label_batches_under_way(self) -> int:
        """How many label batches exist at once: being prepared, waiting, and the one being used."""
        return self.num_workers * self.prefetch_factor + 1


@dataclass(frozen=True, kw_only=True)
class ImageSettings(LabelSettings):
    """Options of loaders that replay images.

    mean, std: of the normalisation, for pixels scaled to 0..1; the teacher's unless given.
    cache_directory: keep decoded images in a memory-mapped file there too, for later runs.
    memory_bytes: how much memory decoded images may take otherwise.
    """

    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    memory_bytes: int = MEMORY_BYTES


@dataclass(frozen=True, kw_only=True)
class PoolSettings(ImageSettings):
    """Options of `pool_loader`.

    batch_size: rows per batch and process, any number. Views are mixed within their label batch first
        and cut into batches then, so pixels and labels do not depend on it. None gives each label batch
        as it is.
    global_batch: `batch_size`, or a label batch, is what all processes take in a step together: steps are
        those of one process, whatever the number of processes. Shares may be unequal, or empty.
    drop_last: leave out a last batch of fewer rows than `batch_size`.
    temperature: give softened probabilities softmax(z / temperature) instead of the stored labels; a
        function of the epoch where it changes from one to the next.
    batch_format: "batch" yields `PoolBatch`es, "dict" dictionaries of their fields by name (Hugging
        Face's Trainer), "tuple" pairs (images, labels) (timm and most image trainers).
    normalised: False gives pixels 0..255, as uint8 or, where MixUp made fractions of them, float32.
    device: finish there (normalise, decode labels) and yield tensors there; the CPU unless given, or
        Accelerate's device once `accelerator.prepare` has seen the loader.
    pin_memory: yield images in pinned memory (without `device`).
    verify_images: compare every image with its digest now, not when it is first used.
    """

    batch_size: int | None = None
    global_batch: bool = False
    drop_last: bool = False
    temperature: Temperature | None = None
    batch_format: BatchFormat = "batch"
    normalised: bool = True
    device: torch.device | str | None = None
    pin_memory: bool = False
    verify_images: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is not None and self.batch_size < 1:
            raise InvalidArgumentError(
                "batch size is out of range", expected="at least 1", got=self.batch_size
            )
        if self.batch_format not in get_args(BatchFormat):
            raise InvalidArgumentError(
                "unknown batch format",
                expected=f"one of {', '.join(get_args(BatchFormat))}",
                got=self.batch_format,
            )
        if self.temperature is not None and not callable(self.temperature):
            check_temperature(self.temperature)


Options = ParamSpec("Options")
Settings = TypeVar("Settings", bound=LabelSettings)
Pool = TypeVar("Pool")
Images = TypeVar("Images")
Loader = TypeVar("Loader")
Pool_contra = TypeVar("Pool_contra", contravariant=True)
Images_contra = TypeVar("Images_contra", contravariant=True)
Loader_co = TypeVar("Loader_co", covariant=True)


class WithOrWithoutImages(Protocol[Pool_contra, Images_contra, Options, Loader_co]):
    """A factory of loaders that takes a pool, the images unless the pool carries them, and options."""

    @overload
    def __call__(
        self, pool: Pool_contra, images: Images_contra, /, *_: Options.args, **options: Options.kwargs
    ) -> Loader_co: ...
    @overload
    def __call__(self, pool: Pool_contra, /, *_: Options.args, **options: Options.kwargs) -> Loader_co: ...


class takes_options(Generic[Options, Settings]):  # noqa: N801  # a decorator
    """Let a factory f(settings, pool, ...) take its settings' fields as keywords: f(pool, ..., **fields)."""

    def __init__(self, kind: Callable[Options, Settings]) -> None:
        self._kind = kind

    @overload
    def __call__(
        self, make: Callable[[Settings, Pool, Images], Loader]
    ) -> WithOrWithoutImages[Pool, Images, Options, Loader]: ...
    @overload
    def __call__(
        self, make: Callable[[Settings, Pool], Loader]
    ) -> Callable[Concatenate[Pool, Options], Loader]: ...
    def __call__(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Return the factory with keywords; its signature shows them."""
        options = inspect.signature(self._kind).parameters
        places = list(inspect.signature(make).parameters.values())[1:]

        @wraps(make)
        def opened(*arguments: Any, **keywords: Any) -> Any:
            chosen = {name: keywords.pop(name) for name in options.keys() & keywords.keys()}
            kind: Callable[..., Settings] = self._kind
            return make(kind(**chosen), *arguments, **keywords)

        opened.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # read by help()
            [*places, *options.values()]
        )
        return opened
