"""The codec that meets a request for a pool, and whether a simpler one would do."""

from __future__ import annotations

from lpld_labels.codecs import Codec, codec_named, planned_codecs
from lpld_labels.codecs.fitting import Fitter, FittingLabels
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
        if request.kind.demands:
            return self.fitter(request, rows=rows).fitted(request)
        return codec_named(request.name, label_kind=self._sample.pool.header.label_kind)

    def fitter(self, request: CodecRequest, *, rows: int) -> Fitter:
        """Return the fitter of a kind of codec for a pool of `rows` rows."""
        sample, header = self._sample, self._sample.pool.header
        if request.name not in self._fitters:
            labels = FittingLabels(
                fit=sample.fit,
                tune=sample.tune,
                batch_size=header.batch_size,
                label_kind=header.label_kind,
                keeper=sample.keeper.about(codec=request.name, seed=request.seed),
            )
            self._fitters[request.name] = request.kind.fitter(labels, rows=rows, seed=request.seed)
        return self._fitters[request.name].for_rows(rows)


def better_choice(codec: Codec, pool: PoolReader, sample: LabelSample, *, batches: int) -> str | None:
    """Return a simpler codec that keeps no less than this fitted one in a pool that is no larger, if any.

    batches: how many full batches of `pool` the encoded pool has. In small pools the
    basis weighs more than it saves, and few classes leave little to transform.
    """
    if not codec.demands:
        return None
    temperature = float(codec.target.get("temperature", DEFAULT_TEMPERATURE))

    def kept(candidate: Codec) -> float:
        return sample.judged(candidate, temperatures=(temperature,)).kept[temperature]

    limit, enough = weigh(pool, codec, pool.keys).total(batches), kept(codec)
    for name in planned_codecs(fitted=False):
        other = codec_named(name)
        if weigh(pool, other, pool.keys).total(batches) <= limit and kept(other) >= enough:
            return name
    return None
