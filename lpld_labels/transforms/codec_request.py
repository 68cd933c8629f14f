"""The codec that meets a request for a pool, and whether a simpler one would do."""

from __future__ import annotations

from lpld_labels.codecs import Codec, codec_named, planned_codecs
from lpld_labels.codecs.base import Fitter
from lpld_labels.codecs.request import DEFAULT_FIDELITY, DEFAULT_TEMPERATURE, CodecRequest
from lpld_labels.pool.reader import PoolReader
from lpld_labels.transforms.encode_size import weigh
from lpld_labels.transforms.label_sample import LabelSample

__all__ = ["DEFAULT_FIDELITY", "DEFAULT_TEMPERATURE", "CodecRequest", "FittedCodecs", "better_choice"]


class FittedCodecs:
    """Codecs for one pool, by request; what is costly to fit is kept for the next one."""

    def __init__(self, sample: LabelSample) -> None:
        self._sample = sample
        self._fitters: dict[str, Fitter] = {}

    def codec(self, request: CodecRequest, *, rows: int) -> Codec:
        """Return the codec for a pool of `rows` rows, fitted to the sample if its kind is fitted at all."""
        target = request.target()
        if request.kind.fitted:
            fitter = self.fitter(request, rows=rows)
            return fitter.for_fidelity(target["fidelity"], temperature=target["temperature"])
        return codec_named(request.name, label_kind=self._sample.pool.header.label_kind)

    def fitter(self, request: CodecRequest, *, rows: int) -> Fitter:
        """Return the fitter of a kind of codec for a pool of `rows` rows."""
        sample, header = self._sample, self._sample.pool.header
        if request.name not in self._fitters:
            self._fitters[request.name] = request.kind.fitter(
                sample.fit,
                sample.tune,
                rows=rows,
                batch_size=header.batch_size,
                label_kind=header.label_kind,
                seed=request.seed,
            )
        return self._fitters[request.name].for_rows(rows)


def better_choice(
    codec: Codec, pool: PoolReader, sample: LabelSample, *, temperature: float, batches: int
) -> str | None:
    """Return a simpler codec that keeps no less than this fitted one in a pool that is no larger, if any.

    temperature: at which labels will be used. batches: how many full batches of `pool` the encoded pool has.
    In small pools the basis weighs more than it saves, and few classes leave little to transform.
    """
    if not codec.fitted:
        return None

    def kept(candidate: Codec) -> float:
        return sample.judged(candidate, temperatures=(temperature,)).kept[temperature]

    limit, enough = weigh(pool, codec, pool.keys).total(batches), kept(codec)
    for name in planned_codecs(fitted=False):
        other = codec_named(name)
        if weigh(pool, other, pool.keys).total(batches) <= limit and kept(other) >= enough:
            return name
    return None
