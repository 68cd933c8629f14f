"""What someone wants of a codec, and the codec that gives it for a pool."""

from __future__ import annotations

from dataclasses import dataclass

from lpld_labels.codecs import Codec, codec_named
from lpld_labels.codecs.evaluation import try_codec
from lpld_labels.codecs.klt import KltCodec
from lpld_labels.codecs.klt_fit import KltFitter
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import PoolHeader
from lpld_labels.pool.reader import PoolReader
from lpld_labels.rewriting.encode_size import weigh
from lpld_labels.rewriting.label_sample import LabelSample

KLT = "klt"
DEFAULT_FIDELITY = 0.97
DEFAULT_TEMPERATURE = 20.0
SIMPLER = ("f16", "int8", "int6", "int4")
"""Codecs without tables, most faithful first."""


@dataclass(frozen=True, kw_only=True)
class CodecRequest:
    """A codec by name and, for `klt`, at most one demand.

    name: ``klt`` or a spelling of `codec_named`.
    fidelity: share of the information to keep. bytes_per_row: labels and the codec's tables, without
    views and container. budget: bytes of the whole pool. step: the quantisation step itself.
    temperature: at which the labels will be used, so where they shall be kept best.
    """

    name: str = KLT
    fidelity: float | None = None
    temperature: float | None = None
    bytes_per_row: float | None = None
    step: float | None = None
    budget: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        demands = [
            field
            for field in ("fidelity", "bytes_per_row", "step", "budget")
            if getattr(self, field) is not None
        ]
        if len(demands) > 1:
            raise InvalidArgumentError("ask for one thing at a time", got=" and ".join(demands))
        if demands and self.name != KLT:
            raise InvalidArgumentError(
                f"codec '{self.name}' cannot be set by {demands[0]}", expected="codec 'klt'", got=self.name
            )
        if self.temperature is not None and (self.name != KLT or self.step is not None):
            raise InvalidArgumentError("a temperature makes no difference here", got=self.temperature)

    def target(self) -> dict[str, float]:
        """Return the demand as JSON values; what an unfinished pool was fitted for."""
        if self.step is not None:
            return {"step": self.step, "seed": self.seed}
        target = {
            "temperature": DEFAULT_TEMPERATURE if self.temperature is None else self.temperature,
            "seed": self.seed,
        }
        for field in ("bytes_per_row", "budget"):
            if getattr(self, field) is not None:
                return {field: getattr(self, field), **target}
        return {"fidelity": DEFAULT_FIDELITY if self.fidelity is None else self.fidelity, **target}


def choose_codec(request: CodecRequest, header: PoolHeader, sample: LabelSample, *, rows: int) -> Codec:
    """Return the codec for a pool of `rows` rows; `klt` is fitted to the sample."""
    if request.name != KLT:
        return codec_named(request.name, label_kind=header.label_kind)
    return fit_request(request, klt_fitter(header, sample, rows=rows, seed=request.seed))


def klt_fitter(header: PoolHeader, sample: LabelSample, *, rows: int, seed: int = 0) -> KltFitter:
    """Return the fitter of `klt` for a pool like this of `rows` rows."""
    return KltFitter(
        fit=sample.fit,
        tune=sample.tune,
        rows=rows,
        batch_size=header.batch_size,
        label_kind=header.label_kind,
        seed=seed,
    )


def fit_request(request: CodecRequest, fitter: KltFitter) -> KltCodec:
    """Return the codec that meets the demand."""
    target = request.target()
    if request.step is not None:
        return fitter.codec(request.step, target=target)
    if request.bytes_per_row is not None:
        limit = request.bytes_per_row
        return fitter.for_bytes_per_row(limit, temperature=target["temperature"], target=target)
    return fitter.for_fidelity(target["fidelity"], temperature=target["temperature"], target=target)


def better_choice(codec: Codec, pool: PoolReader, sample: LabelSample, *, batches: int) -> str | None:
    """Return a simpler codec that keeps no less than this `klt` in a pool that is no larger, if any.

    batches: how many full batches of `pool` the encoded pool has. In small pools the
    basis weighs more than it saves, and few classes leave little to transform.
    """
    if not isinstance(codec, KltCodec):
        return None
    temperature = float(codec.target.get("temperature", DEFAULT_TEMPERATURE))

    def kept(candidate: Codec) -> float:
        trial = try_codec(
            candidate,
            sample.measure,
            batch_size=pool.header.batch_size,
            label_kind=pool.header.label_kind,
            temperatures=(temperature,),
        )
        return trial.fidelity.kept[temperature]

    limit, enough = weigh(pool, codec, pool.keys).total(batches), kept(codec)
    for name in SIMPLER:
        other = codec_named(name)
        if weigh(pool, other, pool.keys).total(batches) <= limit and kept(other) >= enough:
            return name
    return None
