"""Settings of `prune`, `encode` and `plan`. `--help` imports this module, so it must not import Arrow."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from lpld_labels.errors import InvalidArgumentError, UsageError
from lpld_labels.format.limits import MAX_SEED
from lpld_labels.settings import Setting, check_settings

DEFAULT_FIDELITY = 0.97
DEFAULT_TEMPERATURE = 20.0
DEFAULT_MIN_FIDELITY = 0.95
"""Best for students at the sizes of f16 pruned 40x and 160x (benchmarks/results/accuracy_tiny100.json)."""

SampleSeed = Annotated[int, Setting("Seed of the sample that codecs are measured on.", ge=0, le=MAX_SEED)]
ViewsOfPool = Annotated[
    Literal["stored", "drawn"] | None,
    Setting("Store views in files, or draw them from the seed when read.  [default: as in POOL]"),
]
FromLossy = Annotated[bool, Setting("Accept a pool whose labels are already in a lossy codec.")]


@dataclass(frozen=True, kw_only=True)
class Amount:
    """A size in bytes, or relative to the size of a pool or of its images."""

    number: float
    of: Literal["bytes", "pool", "images"]

    @classmethod
    def parse(cls, text: str, *, images: bool) -> Amount:
        """Parse a size such as 300MB or 10%. images: whether it may be relative to the images."""
        match = _SIZE.fullmatch(text)
        unit = _UNITS.get(match[2].upper()) if match else None
        known = unit is not None and (images or unit.of != "images")
        if match is None or unit is None or not known or not 0 < float(match[1]) * unit.number < math.inf:
            forms = "300MB, 30K, 1 GiB, 4000 (bytes), 10% or 0.5x (of the pool)"
            forms += " or 1x-images (of the images)" if images else ""
            raise UsageError(f"{text!r} is not a size; write {forms}")
        return replace(unit, number=float(match[1]) * unit.number)

    @classmethod
    def of_any(cls, size: int | str | Amount, *, images: bool) -> Amount:
        if isinstance(size, int):
            return cls(number=size, of="bytes")
        return cls.parse(size, images=images) if isinstance(size, str) else size

    def bytes(self, *, pool: int, images: int = 0) -> int:
        return int(self.number * {"bytes": 1, "pool": pool, "images": images}[self.of])


_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Z-]*|%)\s*", re.IGNORECASE)
_UNITS = {
    "": Amount(number=1, of="bytes"),
    "B": Amount(number=1, of="bytes"),
    "%": Amount(number=0.01, of="pool"),
    "X": Amount(number=1, of="pool"),
    "X-IMAGES": Amount(number=1, of="images"),
} | {
    f"{letter}{end}": Amount(number=base**power, of="bytes")
    for power, letter in enumerate("KMGT", 1)
    for end, base in (("", 1000), ("B", 1000), ("I", 1024), ("IB", 1024))
}


@dataclass(frozen=True, kw_only=True)
class PruneChoices:
    """How many and which batches to keep, as given by users."""

    ratio: Annotated[float | None, Setting("Keep floor(n / RATIO) of the n complete batches.")] = None
    budget: Annotated[
        int | str | Amount | None, Setting("Keep as many batches as fit into this size, e.g. 300MB or 10%.")
    ] = None
    level: Annotated[
        Literal["batch", "epoch"], Setting("Select batches or whole epochs (the last may be incomplete).")
    ] = "batch"
    by: Annotated[
        Literal["random", "correct", "diff", "diff_signed", "cut_ratio", "confidence"],
        Setting("Choose batches at random, or by a metric of how easy the teacher found them."),
    ] = "random"
    prefer: Annotated[
        Literal["hard", "easy", "uniform"] | None, Setting("Keep hard or easy batches, or an even mix.")
    ] = None
    seed: Annotated[
        int | None, Setting("Seed of the random order.  [default: the pool's]", ge=0, le=MAX_SEED)
    ] = None


@dataclass(frozen=True, kw_only=True)
class PruneSettings(PruneChoices):
    """How many and which batches to keep. Exactly one of `ratio` and `budget` is given."""

    budget: int | None = None

    def __post_init__(self) -> None:
        check_settings(self)
        if (self.ratio is None) == (self.budget is None):
            raise InvalidArgumentError("give either a ratio or a budget", expected="exactly one of the two")
        if self.ratio is not None:
            require_ratio(self.ratio)
        if (self.by == "random") != (self.prefer is None):
            raise InvalidArgumentError(
                "by and prefer do not fit together",
                expected="by 'random' without prefer, or a metric with prefer",
                got=f"by {self.by}, prefer {self.prefer}",
            )


def require_ratio(ratio: float) -> None:
    """Refuse a ratio below 1."""
    if not (math.isfinite(ratio) and ratio >= 1):
        raise InvalidArgumentError("ratio is too small", expected="a number >= 1", got=ratio)


@dataclass(frozen=True, kw_only=True)
class EncodeSettings:
    """The codec of a new pool, and whether the pool stores its views."""

    codec: Annotated[
        str | None,
        Setting("f16, f16:plain, f32, f32:plain, int8, int6, int4, topk:K, topk:K:BITS (8, 16, 32) or klt."),
    ] = None
    views: ViewsOfPool = None
    fidelity: Annotated[
        float | None,
        Setting(f"klt: share of the label information to keep.  [default: {DEFAULT_FIDELITY}]", gt=0, lt=1),
    ] = None
    temperature: Annotated[
        float | None,
        Setting(f"klt: temperature that students will use.  [default: {DEFAULT_TEMPERATURE:g}]", gt=0),
    ] = None
    seed: SampleSeed = 0
    from_lossy: FromLossy = False

    def __post_init__(self) -> None:
        check_settings(self)
        fitting = [name for name in ("fidelity", "temperature") if getattr(self, name) is not None]
        if self.codec is None:
            if self.views is None or fitting:
                raise InvalidArgumentError("no codec is given", hint="give --codec, or --views alone")
            return
        from lpld_labels.codecs import codec_kind

        kind = codec_kind(self.codec)
        if fitting and not kind.fitted:
            raise InvalidArgumentError(
                f"{fitting[0]} is a setting of codec 'klt' only", expected="codec klt", got=self.codec
            )
        if kind.fitted and self.codec != kind.name:
            raise InvalidArgumentError(
                f"codec '{kind.name}' takes no parameters", expected=kind.name, got=self.codec
            )


@dataclass(frozen=True, kw_only=True)
class PlanChoices:
    """The budget of a pool, and how much information its labels must keep, as given by users."""

    budget: Annotated[int | str | Amount, Setting("Size: 300MB, 10% (of POOL) or 1x-images (of --images).")]
    codecs: Annotated[
        tuple[str, ...],
        Setting("Codec to consider; repeat the option for more.  [default: f16, int8, int6, int4, klt]"),
    ] = ()
    min_fidelity: Annotated[
        float | None,
        Setting(
            "Share of the label information that a recommended way must keep.  "
            f"[default: {DEFAULT_MIN_FIDELITY}, which gave the best students]",
            gt=0,
            lt=1,
        ),
    ] = None
    temperature: Annotated[float, Setting("Temperature for --min-fidelity.", gt=0)] = DEFAULT_TEMPERATURE
    views: ViewsOfPool = None
    seed: SampleSeed = 0
    from_lossy: FromLossy = False


@dataclass(frozen=True, kw_only=True)
class PlanSettings(PlanChoices):
    """The budget of a pool in bytes, and how much information its labels must keep."""

    budget: Annotated[int, Setting(gt=0)]

    def __post_init__(self) -> None:
        check_settings(self)
        for name in self.codecs:
            EncodeSettings(codec=name)
