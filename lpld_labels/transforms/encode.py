"""Making a pool with another codec: fit it, encode every batch, publish.

Views are copied, labels are decoded and encoded again, batch by batch. Several processes can share the
work. An interrupted run goes on where it stopped when it is started again with the same settings.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from lpld_labels.codecs import Codec
from lpld_labels.codecs.fidelity import Fidelity
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Engine, Progress
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.format.records import BatchKey
from lpld_labels.format.schema import Views
from lpld_labels.pool.checkpoint import Checkpoint
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import encoded_fixed_bytes, index_bytes, pool_bytes
from lpld_labels.pool.staged_writer import StagedWriter
from lpld_labels.pool.staging import StagingArea
from lpld_labels.pool.staging_plan import deciding
from lpld_labels.transforms.change_views import require_drawable
from lpld_labels.transforms.codec_request import (
    DEFAULT_TEMPERATURE,
    CodecRequest,
    FittedCodecs,
    better_choice,
)
from lpld_labels.transforms.destinations import writes_pools
from lpld_labels.transforms.encode_size import weigh
from lpld_labels.transforms.engine import (
    Draft,
    as_json,
    published,
    require_possible,
    same_lineage,
    stage,
)
from lpld_labels.transforms.label_sample import LabelSample
from lpld_labels.transforms.outputs import sole_writer
from lpld_labels.transforms.sources import Selection

BUDGET_ROUNDS = 6
_MARGIN = 0.999
"""Share of the room for labels that is planned with: the sample is not the pool."""


@dataclass(frozen=True, kw_only=True)
class EncodeResult:
    """What came of it.

    before, after: bytes of the source (the whole pool) and the new pool. fidelity: measured on rows the
    codec was not fitted to. better: a simpler codec that would serve as well in no more bytes, or None.
    """

    manifest: Manifest
    codec: Codec
    before: int
    after: int
    fidelity: Fidelity
    better: str | None


@writes_pools
def encode_pool(
    pool: PoolReader,
    out: str | os.PathLike[str],
    request: CodecRequest,
    *,
    keys: Sequence[BatchKey] | None = None,
    selection: Selection | None = None,
    views: Views | None = None,
    engine: Engine = ONE_PROCESS,
    from_lossy: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EncodeResult:
    """Write the pool, or the batches `keys` of it, to `out` with the codec that is asked for.

    selection: these batches instead, and how they were chosen.
    views: whether the new pool keeps its views or leaves them to be drawn; None to do as this one does.
    engine: who does the work. from_lossy: accept a pool whose labels a lossy codec has already changed.
    overwrite: replace another pool that is there.
    progress: called with (done, total) batches.
    """
    refuse_lossy(pool, accept=from_lossy)
    require_possible(out, pool, overwrite=overwrite)
    require_drawable(pool, views)
    selection = selection or Selection(pool=pool, keys=sorted(pool.keys if keys is None else keys))
    encoding = Encoding(request, Path(out).absolute(), pool, batches=len(selection.keys), views=views)

    def rounds() -> Rounds:
        return (_OneRound if request.budget is None else _BudgetRounds)(encoding, selection)

    def is_ours(manifest: Manifest) -> bool:
        return encoding.made(manifest, selection)

    return encoding.written(is_ours, rounds, engine=engine, overwrite=overwrite, progress=progress)


def refuse_lossy(pool: PoolReader, *, accept: bool) -> None:
    """Refuse labels that have been through a lossy codec: what it lost would be lost without a trace."""
    if not pool.codec.lossless and not accept:
        raise InvalidArgumentError(
            f"labels of this pool have already lost information to codec '{pool.codec.name}'",
            where=pool.location,
            expected="a pool in codec f16 or f32",
            hint="encode the original pool, or insist (--from-lossy): fidelity is then that to these labels",
        )


class Rounds(ABC):
    """The drafts of an encoding, one after the other. The first is there when it is made.

    weighed: whether what a draft turns out to weigh matters.
    """

    weighed: ClassVar[bool] = True

    def __init__(self, encoding: Encoding, selection: Selection, codec: Codec) -> None:
        self.encoding, self.selection, self.codec = encoding, selection, codec

    def draft(self) -> Draft:
        """Return the present draft."""
        encoding = self.encoding
        return self.selection.draft(encoding.out, encoding.purpose, self.codec, encoding.views)

    @abstractmethod
    def next(self, measured: int) -> bool:
        """Take up the next draft if the present one's bytes will not do; return whether there was need to."""

    def __call__(self, writer: StagedWriter) -> Draft | None:
        """Judge a staged pool."""
        fixed = encoded_fixed_bytes(self.encoding.pool, self.codec)
        measured = fixed + index_bytes(len(self.selection.keys)) + writer.staged_bytes()
        return self.draft() if self.next(measured) else None


class _OneRound(Rounds):
    """Whatever it weighs."""

    weighed = False

    def __init__(self, encoding: Encoding, selection: Selection) -> None:
        super().__init__(encoding, selection, encoding.codec(selection, resume=True))

    def next(self, measured: int) -> bool:
        del measured
        return False


class _BudgetRounds(Rounds):
    """One codec after the other until the whole pool fits the budget: estimate, write, weigh, correct."""

    def __init__(self, encoding: Encoding, selection: Selection) -> None:
        self._budget = encoding.request.budget or 0
        self._fitter = encoding.fitted.fitter(encoding.request, rows=selection.rows)
        super().__init__(encoding, selection, self._fitter.smallest())
        self._estimate = self._weighed()
        if self._estimate > self._budget:
            raise InvalidArgumentError(
                f"budget is too small for these labels in codec '{self.codec.name}'",
                expected=f"at least {self._estimate} bytes",
                got=f"{self._budget} bytes",
                hint="prune the pool first, or let `plan` find a ratio and a codec that fit",
            )
        self._codecs = self._likely_codecs()
        self.codec = next(self._codecs)

    def next(self, measured: int) -> bool:
        self._estimate = measured
        if measured <= self._budget:
            return False
        self.codec = next(self._codecs)
        return True

    def _weighed(self) -> int:
        pool, keys = self.encoding.pool, self.selection.keys
        return weigh(pool, self.codec, keys, self.encoding.views).total(len(keys))

    def _likely_codecs(self) -> Iterator[Codec]:
        """Yield codecs that seem to fit, each by what the one before turned out to weigh."""
        rows = self.selection.rows
        for number in range(BUDGET_ROUNDS):
            # Everything but labels and tables stays nearly the same from one codec to the next.
            others = self._estimate - rows * self._fitter.bytes_per_row(self.codec)
            room = (self._budget - others) / rows * _MARGIN
            self.codec = self._fitter.for_bytes_per_row(room, temperature=self.encoding.temperature)
            self._estimate = self._weighed()
            if number and self._estimate <= self._budget:
                yield self.codec
        raise InvalidArgumentError(
            "no setting of the codec found that meets the budget",
            expected=f"at most {self._budget} bytes",
            got=f"{self._estimate} bytes",
        )


@dataclass(frozen=True, eq=False)
class Encoding:
    """What is asked for, where, and of which pool.

    views: whether the pool will keep its views; None to do as its source.
    batches: how many the pool will have; None where some are left out to make it fit `limit` bytes.
    """

    request: CodecRequest
    out: Path
    pool: PoolReader
    batches: int | None = None
    limit: int | None = None
    views: Views | None = None

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """What fitting and judging have come to."""
        return Checkpoint.at(self.out, self.pool.manifest.content_digest)

    @cached_property
    def sample(self) -> LabelSample:
        """Labels to fit to and to judge by, of the whole pool: a basis wants many rows."""
        return LabelSample(self.pool, seed=self.request.seed, keeper=self.checkpoint)

    @cached_property
    def fitted(self) -> FittedCodecs:
        """Codecs that are fitted to the sample."""
        return FittedCodecs(self.sample)

    @property
    def purpose(self) -> dict[str, Any]:
        """What makes unfinished work this encoding's."""
        return deciding(
            "encode",
            pool=self.pool.manifest.content_digest,
            codec=self.request.name,
            target=self.request.target(),
            batches=self.batches,
            limit=self.limit,
            views=self.views,
        )

    @property
    def temperature(self) -> float:
        """At which labels will be used."""
        return self.request.target().get("temperature", DEFAULT_TEMPERATURE)

    def codec(self, selection: Selection, *, resume: bool) -> Codec:
        """Return the codec that is asked for; with `resume`, that of unfinished work if there is any."""
        staged = StagingArea(self.out)
        if resume and self.request.kind.fitted and staged.purpose() == as_json(self.purpose):
            found = staged.codec()
            if found is not None:
                return found
        return self.fitted.codec(self.request, rows=selection.rows)

    def written(
        self,
        is_ours: Callable[[Manifest], bool],
        rounds: Callable[[], Rounds],
        *,
        engine: Engine,
        overwrite: bool,
        progress: Progress | None,
    ) -> EncodeResult:
        """Return the pool that is there already, or write it; `rounds` may refuse before anything is."""
        with sole_writer(self.out), self.checkpoint.unless_refused():
            first = None
            if overwrite:
                # What cannot be made must not cost the pool that it was to replace.
                first = rounds()
                self.sample.judged(first.codec)
            found = published(self.out, is_ours, purpose=self.purpose, overwrite=overwrite)
            if found is not None:
                return self.found(found)
            return self.write(first or rounds(), engine=engine, progress=progress)

    def write(self, rounds: Rounds, *, engine: Engine, progress: Progress | None) -> EncodeResult:
        """Encode and publish; the search for a simpler codec comes first, nothing after the commit."""
        # Judged first: a codec that cannot hold these labels fails before anything is written.
        codec, fidelity = rounds.codec, self.sample.judged(rounds.codec)
        judge = rounds if rounds.weighed else None
        writer = stage(rounds.draft(), judge=judge, engine=engine, progress=progress)
        if rounds.codec is not codec:
            fidelity = self.sample.judged(rounds.codec)
        better = better_choice(
            rounds.codec,
            self.pool,
            self.sample,
            temperature=self.temperature,
            batches=len(rounds.selection.keys),
        )
        step = self._step(rounds.selection, fidelity)
        manifest = writer.commit(lineage=(*rounds.selection.lineage, step))
        return self._result(manifest, rounds.codec, fidelity, better)

    def made(self, manifest: Manifest, selection: Selection) -> bool:
        """Whether a pool is what this encoding makes of a selection."""
        past, last = manifest.header.lineage[:-1], manifest.header.lineage[-1:]
        if not last or manifest.counts.batches != len(selection.keys):
            return False
        fidelity = last[0].parameters.get("fidelity")
        step = self._step(selection, None)
        step = replace(step, parameters=step.parameters | {"fidelity": fidelity})
        return same_lineage((*past, *last), (*selection.lineage, step))

    def found(self, manifest: Manifest) -> EncodeResult:
        """Return what came of an encoding that was finished before."""
        self.checkpoint.close()
        # Of a pool at an address, no more is here than opening takes.
        with PoolReader(self.out, check_sizes=False) as pool:
            codec = pool.codec
        better = better_choice(
            codec, self.pool, self.sample, temperature=self.temperature, batches=manifest.counts.batches
        )
        return self._result(manifest, codec, self.sample.judged(codec), better)

    def _result(
        self, manifest: Manifest, codec: Codec, fidelity: Fidelity, better: str | None
    ) -> EncodeResult:
        return EncodeResult(
            manifest=manifest,
            codec=codec,
            before=pool_bytes(self.pool.manifest),
            after=pool_bytes(manifest),
            fidelity=fidelity,
            better=better,
        )

    def _step(self, selection: Selection, fidelity: Fidelity | None) -> LineageStep:
        return LineageStep(
            operation="encode",
            parent_digest=selection.digest(),
            parameters={
                "codec": self.request.name,
                "from": self.pool.manifest.codec.name,
                "target": self.request.target(),
                "fidelity": fidelity and fidelity.as_json(),
                **({} if self.views is None else {"views": self.views}),
                # Planned: the codec was fitted before batches were left out to meet the budget.
                **({} if self.limit is None else {"plan_budget": self.limit}),
            },
        )
