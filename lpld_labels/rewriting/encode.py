"""Making a pool with another codec: fit it, encode every batch, publish.

Views are copied, labels are decoded and encoded again, batch by batch. Several processes can share the
work. An interrupted run goes on where it stopped when it is started again with the same settings.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lpld_labels.codecs import Codec
from lpld_labels.codecs.evaluation import try_codec
from lpld_labels.codecs.fidelity import Fidelity
from lpld_labels.codecs.klt import KltCodec
from lpld_labels.errors import InvalidArgumentError, StagingMismatchError
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.format.records import BatchKey
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.staging import StagingArea
from lpld_labels.pool.writer import PoolWriter, missing_keys
from lpld_labels.processes import Tell, work_in_processes
from lpld_labels.rewriting.codec_request import KLT, CodecRequest, better_choice, choose_codec, klt_fitter
from lpld_labels.rewriting.encode_size import staged_bytes, weigh
from lpld_labels.rewriting.label_sample import LabelSample
from lpld_labels.rewriting.prune import require_free

Progress = Callable[[int, int], None]

PIECE = 256
"""Batches that a process encodes before it seals them and reports."""
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
    before: int
    after: int
    fidelity: Fidelity
    better: str | None


def encode_pool(
    pool: PoolReader,
    out: str | os.PathLike[str],
    request: CodecRequest,
    *,
    keys: Sequence[BatchKey] | None = None,
    lineage: tuple[LineageStep, ...] | None = None,
    parent_digest: str | None = None,
    at_most: int | None = None,
    jobs: int = 1,
    force: bool = False,
    progress: Progress | None = None,
) -> EncodeResult:
    """Write the pool, or the batches `keys` of it, to `out` with the codec that is asked for.

    lineage, parent_digest: what to record as the past of the new pool; the pool's own if not given.
    at_most: give up with BudgetExceededError, and leave nothing, if the pool would weigh more bytes.
    jobs: processes. force: accept a pool whose labels a lossy codec has already changed.
    progress: called with (done, total) batches.
    """
    refuse_lossy(pool, force=force)
    path = Path(out)
    require_free(path)
    wanted = sorted(pool.keys if keys is None else keys)
    rows = sum(pool.index.rows_of(key) for key in wanted)
    # Of the whole pool, whatever is kept of it: a basis wants many rows.
    sample = LabelSample(pool, seed=request.seed)
    header = pool.header

    def judged(codec: Codec) -> Fidelity:
        batch_size, kind = header.batch_size, header.label_kind
        return try_codec(codec, sample.measure, batch_size=batch_size, label_kind=kind).fidelity

    codec = _staged_codec(path, request)
    if codec is None and request.budget is not None:
        codec, writer = _stage_within_budget(pool, path, request, wanted, sample, jobs, progress)
        fidelity = judged(codec)
    else:
        codec = codec or choose_codec(request, header, sample, rows=rows)
        # Judged first: a codec that cannot hold these labels fails before anything is written.
        fidelity = judged(codec)
        writer = _stage(pool, path, codec, wanted, jobs, progress)
    limit = request.budget if at_most is None else at_most
    if limit is not None:
        _require_light(pool, codec, path, wanted, limit)
    step = LineageStep(
        operation="encode",
        parent_digest=parent_digest or pool.manifest.content_digest,
        parameters={
            "codec": request.name,
            "from": pool.manifest.codec.name,
            "target": request.target() if request.name == KLT else {},
            "fidelity": fidelity.as_json(),
        },
    )
    manifest = writer.commit(lineage=(*(header.lineage if lineage is None else lineage), step))
    return EncodeResult(
        manifest=manifest,
        before=pool_bytes(pool.manifest),
        after=pool_bytes(manifest),
        fidelity=fidelity,
        better=better_choice(codec, pool, sample, batches=len(wanted)),
    )


class BudgetExceededError(InvalidArgumentError):
    """The pool turned out larger than it may be; `measured` says how large."""

    measured: int = 0


def _require_light(pool: PoolReader, codec: Codec, out: Path, keys: Sequence[BatchKey], limit: int) -> None:
    measured = staged_bytes(pool, codec, out, len(keys))
    if measured > limit:
        StagingArea(out).remove()
        error = BudgetExceededError(
            "the pool does not fit", where=out, expected=f"at most {limit} bytes", got=f"{measured} bytes"
        )
        error.measured = measured
        raise error


def refuse_lossy(pool: PoolReader, *, force: bool) -> None:
    """Refuse labels that have been through a lossy codec: what it lost would be lost without a trace."""
    if not pool.codec.lossless and not force:
        raise InvalidArgumentError(
            f"labels of this pool have already lost information to codec '{pool.codec.name}'",
            where=pool.location,
            expected="a pool in codec f16 or f32",
            hint="encode the original pool, or insist (--force): fidelity is then relative to these labels",
        )


def _staged_codec(out: Path, request: CodecRequest) -> Codec | None:
    """Return the fitted codec of an unfinished run with the same demand, to go on with."""
    staged = StagingArea(out).codec()
    same = isinstance(staged, KltCodec) and request.name == KLT and staged.target == request.target()
    return staged if same else None


def _stage(
    pool: PoolReader,
    out: Path,
    codec: Codec,
    keys: Sequence[BatchKey],
    jobs: int,
    progress: Progress | None,
) -> PoolWriter:
    """Encode what is not yet in the staging area of `out`."""
    with PoolWriter(out, header=pool.header, images=pool.images, codec=codec) as writer:
        strangers = sorted(writer.keys - set(keys))
        if strangers:
            raise StagingMismatchError(
                f"unfinished work of another selection is here: it holds {strangers[0]}",
                where=out,
                expected="batches of this pool only",
                hint=f"choose another path or delete {out}",
            )
        missing = list(missing_keys(writer, _in_file_order(pool, keys)))
        if jobs == 1 or len(missing) <= 1:
            _encode(pool, writer, missing, progress)
            return writer
    _encode_in_processes(pool, out, codec, missing, jobs, progress)
    # Opened again, it knows what the processes have sealed.
    return PoolWriter(out, header=pool.header, images=pool.images, codec=codec)


def _encode(
    pool: PoolReader, writer: PoolWriter, keys: Sequence[BatchKey], progress: Progress | None = None
) -> None:
    for done, key in enumerate(keys, 1):
        writer.append(pool.read(key))
        if progress is not None:
            progress(done, len(keys))


def _in_file_order(pool: PoolReader, keys: Sequence[BatchKey]) -> list[BatchKey]:
    places = {key: place for place, key in enumerate(pool.keys)}
    lie = pool.index.places
    return sorted(keys, key=lambda key: tuple(lie[places[key]].tolist()))


def _encode_in_processes(
    pool: PoolReader, out: Path, codec: Codec, keys: Sequence[BatchKey], jobs: int, progress: Progress | None
) -> None:
    """Encode pieces of the keys in `jobs` processes; each piece is sealed on its own."""
    size = max(1, min(PIECE, math.ceil(len(keys) / (4 * jobs))))
    pieces = [keys[start : start + size] for start in range(0, len(keys), size)]
    done = 0

    def heard(batches: int) -> None:
        nonlocal done
        done += batches
        if progress is not None:
            progress(done, len(keys))

    with _one_thread_each():
        work_in_processes(
            partial(_Encoder, pool, out, codec),
            pieces,
            processes=min(jobs, len(pieces)),
            heard=heard,
            where=out,
        )


class _Encoder:
    """Lives in a process of its own; each piece it encodes is sealed."""

    def __init__(self, pool: PoolReader, out: Path, codec: Codec) -> None:
        self._pool, self._out, self._codec = pool, out, codec

    def __call__(self, piece: Sequence[BatchKey], tell: Tell) -> None:
        pool = self._pool
        with PoolWriter(self._out, header=pool.header, images=pool.images, codec=self._codec) as writer:
            for key in piece:
                writer.append(pool.read(key))
                if not tell(1):
                    return


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Start processes whose linear algebra stays on one core: they are the parallelism."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _stage_within_budget(
    pool: PoolReader,
    out: Path,
    request: CodecRequest,
    keys: Sequence[BatchKey],
    sample: LabelSample,
    jobs: int,
    progress: Progress | None,
) -> tuple[Codec, PoolWriter]:
    """Stage the pool so that all of it fits the budget: estimate, write, weigh, correct."""
    budget, target = request.budget or 0, request.target()
    rows = sum(pool.index.rows_of(key) for key in keys)
    fitter = klt_fitter(pool.header, sample, rows=rows, seed=request.seed)
    codec = fitter.smallest()
    estimate = weigh(pool, codec, keys).total(len(keys))
    if estimate > budget:
        raise InvalidArgumentError(
            "budget is too small for these labels in codec 'klt'",
            expected=f"at least {estimate} bytes",
            got=f"{budget} bytes",
            hint="prune the pool first, or let `plan` find a ratio and a codec that fit",
        )
    for number in range(BUDGET_ROUNDS):
        # Everything but labels and tables stays nearly the same from one step to the next.
        others = estimate - rows * fitter.bytes_per_row(codec)
        room = (budget - others) / rows * _MARGIN
        codec = fitter.for_bytes_per_row(room, temperature=target["temperature"], target=target)
        estimate = weigh(pool, codec, keys).total(len(keys))
        if number and estimate <= budget:
            writer = _stage(pool, out, codec, keys, jobs, progress)
            estimate = staged_bytes(pool, codec, out, len(keys))
            if estimate <= budget:
                return codec, writer
            StagingArea(out).remove()
    raise InvalidArgumentError(
        "no step found that meets the budget", expected=f"at most {budget} bytes", got=f"{estimate} bytes"
    )
