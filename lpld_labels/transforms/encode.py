"""Rewrite a pool with another codec, or with its views stored or drawn; everything else is copied.

`LabelSample` has random labels of a pool, to fit and tune codecs and to measure their fidelity and size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from lpld_labels.codecs import Codec, Payload, codec_kind, codec_named
from lpld_labels.codecs.fidelity import TEMPERATURES, Fidelity, Trial, payload_bytes, try_codec
from lpld_labels.codecs.klt_fit import KltFitter
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Executor, Progress
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import BatchKey, LabelArray
from lpld_labels.format.schema import Views
from lpld_labels.format.strict_json import to_json
from lpld_labels.io.addresses import Location
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import views_file_bytes, write_labels
from lpld_labels.pool.sizes import SizeModel, pool_bytes
from lpld_labels.pool.views import require_drawn
from lpld_labels.results import Result
from lpld_labels.transforms.batch_sources import transform_plan
from lpld_labels.transforms.pipeline import (
    finished_before,
    lineage_step,
    require_output,
    run_plan,
    settings_json,
)
from lpld_labels.transforms.remote_output import writes_pools
from lpld_labels.transforms.settings import (
    DEFAULT_FIDELITY,
    DEFAULT_TEMPERATURE,
    EncodeSettings,
    PlanSettings,
)

FIT_VALUES = 1 << 25
FIT_ROWS = (8192, 65536)  # Bounds. FIT_VALUES values are 33,554 rows of 1000 classes.
TUNE_VALUES = 1 << 21
TUNE_ROWS = (768, 4096)  # Tuning decodes each row about a dozen times.
MEASURE_ROWS = 4096
WEIGHED_BATCHES = 16

_RESULTS = 900  # Upper limit on the bytes of a lineage step without its settings.
_TABLE_ENTRY = 260  # Upper limit on the bytes of a codec table's manifest entry.


@dataclass(frozen=True, kw_only=True, repr=False)
class EncodeResult(Result):
    """before, after: pool sizes in bytes. fidelity: on rows not used for fitting; None for copied labels."""

    manifest: Manifest
    before: int
    after: int
    fidelity: Fidelity | None

    def as_json(self) -> dict[str, Any]:
        codec, rows = self.manifest.codec, self.manifest.counts.rows
        measured = None if self.fidelity is None else self.fidelity.as_json()
        target: dict[str, Any] = codec.parameters.get("target", {}) if measured else {}
        return {
            "codec": codec.name,
            "views": self.manifest.views,
            "parameters": codec.parameters,
            "rows": rows,
            "bytes": {
                "before": self.before,
                "after": self.after,
                "smaller": round(self.before / self.after, 3),
                "after_per_row": round(self.after / max(rows, 1), 2),
            },
            "fidelity_asked": target.get("fidelity"),
            "fidelity_reached": measured and measured["kept"].get(f"{target.get('temperature', 0):g}"),
            "fidelity": measured,
            "content_digest": self.manifest.content_digest,
        }


@writes_pools
def encode_pool(
    pool: PoolReader,
    out: Location,
    settings: EncodeSettings,
    *,
    executor: Executor = ONE_PROCESS,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EncodeResult:
    """Write a pool to `out` with the settings' codec and views. overwrite: replace a different pool."""
    if settings.codec is not None:
        refuse_lossy(pool, accept=settings.from_lossy)
    require_drawable(pool, settings.views)
    step = lineage_step("encode", pool.manifest.content_digest, settings, codec_before=pool.codec.name)
    require_output(out, pool.location, overwrite=overwrite, step=step)
    manifest = finished_before(out, step)
    if manifest is None:
        codec, bytes_per_row = None, 0.0
        if settings.codec is not None:
            sample = LabelSample(pool, settings)
            codec = sample.codec(
                settings.codec,
                rows=pool.manifest.counts.rows,
                fidelity=settings.fidelity,
                temperature=settings.temperature,
            )
            # Measure first, so that a codec that cannot hold these labels fails before anything is written.
            target = settings.temperature or DEFAULT_TEMPERATURE
            trial = sample.judged(codec, temperatures=sorted({*TEMPERATURES, target}))
            bytes_per_row = trial.payload_per_row
            step = replace(step, parameters=step.parameters | {"fidelity": trial.fidelity.as_json()})
        plan = transform_plan(pool, out, step, codec=codec, bytes_per_row=bytes_per_row, views=settings.views)
        manifest = run_plan(plan, executor=executor, overwrite=overwrite, progress=progress)
    fidelity = manifest.header.lineage[-1].parameters.get("fidelity")
    return EncodeResult(
        manifest=manifest,
        before=pool_bytes(pool.manifest),
        after=pool_bytes(manifest),
        fidelity=None if fidelity is None else Fidelity.from_json(fidelity),
    )


def refuse_lossy(pool: PoolReader, *, accept: bool) -> None:
    """Refuse a pool with a lossy codec unless `accept`."""
    if not pool.codec.lossless and not accept:
        raise InvalidArgumentError(
            f"labels of this pool have already lost information to codec '{pool.codec.name}'",
            where=pool.location,
            expected="a pool in codec f16 or f32",
            hint="encode the original pool, or accept fidelity measured on these labels (--from-lossy)",
        )


def require_drawable(pool: PoolReader, views: Views | None) -> None:
    """Refuse drawn views if the pool's stored views were not drawn from its seed. Checks one batch only."""
    if views == "drawn" and pool.manifest.views == "stored" and len(pool):
        require_drawn(pool.views_at(0), pool.header, pool.images)


class LabelSample:
    """Random batches of a pool, read on first use. Rows for fitting are not used to tune or measure.

    If the pool has fewer than four batches, tuning and measuring share one. If it has only one, fitting uses
    the even rows of this batch.
    """

    def __init__(self, pool: PoolReader, settings: EncodeSettings | PlanSettings) -> None:
        self.pool = pool
        self._seed = settings.seed
        self._views: Views = settings.views or pool.manifest.views
        self.step_bytes = len(to_json(settings_json(settings))) + _RESULTS
        keys = list(pool.keys)
        if not keys:
            raise InvalidArgumentError("the pool has no labels", where=pool.location, expected="at least one")
        order = keyed_generator(settings.seed, len(keys)).permutation(len(keys))
        shuffled = [keys[place] for place in order.tolist()]
        size = pool.header.batch_size
        quarter = len(keys) // 4
        wanted = {
            "tune": min(_batches(TUNE_VALUES // pool.classes, TUNE_ROWS, size), max(quarter, 1)),
            "measure": min(-(-MEASURE_ROWS // size), quarter),
            "fit": _batches(FIT_VALUES // pool.classes, FIT_ROWS, size),
        }
        self._single = len(keys) == 1
        self._keys: dict[str, list[BatchKey]] = {}
        for purpose, count in wanted.items():
            self._keys[purpose], shuffled = sorted(shuffled[:count]), shuffled[count:]
        self._measured_keys = self._keys["measure"] or self._keys["tune"]

    @cached_property
    def _tune(self) -> list[LabelArray]:
        blocks = self._read(self._keys["tune"])
        return [block[1::2] for block in blocks] if self._single else blocks

    @cached_property
    def _measure(self) -> list[LabelArray]:
        """Label blocks [B, C] to measure codecs on; no codec was fitted to these rows."""
        return self._read(self._keys["measure"]) or self._tune

    def _read(self, keys: Sequence[BatchKey]) -> list[LabelArray]:
        # Copy: an array from the reader would keep its row group in memory.
        return [np.array(self.pool.read_labels(key)) for key in keys]

    def codec(
        self, name: str, *, rows: int, fidelity: float | None = None, temperature: float | None = None
    ) -> Codec:
        """Return a codec for a pool of `rows` rows; codecs of fitted kinds are fitted to the sample."""
        if not codec_kind(name).fitted:
            return codec_named(name, label_kind=self.pool.header.label_kind)
        return self._fitter.for_rows(rows).for_fidelity(
            fidelity or DEFAULT_FIDELITY, temperature=temperature or DEFAULT_TEMPERATURE
        )

    @cached_property
    def _fitter(self) -> KltFitter:
        header = self.pool.header
        blocks = self._read(self._keys["tune" if self._single else "fit"])
        return KltFitter(
            fit=[block[::2] for block in blocks] if self._single else blocks,
            tune=self._tune,
            rows=self.pool.manifest.counts.rows,
            batch_size=header.batch_size,
            label_kind=header.label_kind,
            seed=self._seed,
        )

    def judged(self, codec: Codec, *, temperatures: Sequence[float] = TEMPERATURES) -> Trial:
        header = self.pool.header
        return try_codec(
            codec,
            self._measure,
            batch_size=header.batch_size,
            label_kind=header.label_kind,
            temperatures=temperatures,
        )

    def weigh(self, codec: Codec) -> SizeModel:
        """Return a size model. The sizes of files of n and 2n batches give the bytes per file and per row."""
        manifest = self.pool.manifest
        payloads = [codec.encode(block).payload for block in self._weighed]
        sizes = [len(block) for block in self._weighed]
        rows = sum(sizes)
        once = _labels_file(payloads, sizes, codec, self.pool.classes)
        per_row = (_labels_file(payloads * 2, sizes * 2, codec, self.pool.classes) - once) / rows
        rates = [payload_bytes(payload) / size for payload, size in zip(payloads, sizes, strict=True)]
        tables = sum(len(table) + _TABLE_ENTRY for table in codec.tables().values())
        described = len(manifest.dump()) + len(to_json(codec.parameters())) + self.step_bytes
        carried = sum(entry.bytes for role in ("images", "packed") for entry in manifest.files_of(role))
        views_file, views_per_row = self._view_bytes
        return SizeModel(
            fixed=carried + tables + described,
            per_shard=max(once - per_row * rows, 0) + views_file,
            views_per_row=views_per_row,
            labels_per_row=per_row,
            spread=float(np.std(rates, ddof=1)) if len(rates) > 1 else 0.0,
            sampled=len(rates),
            per_incomplete=payload_bytes(codec.encode(self._weighed[0][:1]).payload),
        )

    @cached_property
    def _weighed(self) -> list[LabelArray]:
        """Up to WEIGHED_BATCHES label blocks for estimating sizes. No other block has more rows."""
        blocks = self._read(self._measured_keys)
        most = max(map(len, blocks))
        return [block for block in blocks if len(block) == most][:WEIGHED_BATCHES]

    @cached_property
    def _view_bytes(self) -> tuple[float, float]:
        """Bytes of a views file without rows, and bytes per row; zeros if views are drawn."""
        if self._views == "drawn":
            return 0.0, 0.0
        manifest = self.pool.manifest
        found = [self.pool.read_views(key) for key in self._measured_keys]
        rows = sum(batch.rows for batch in found)
        numbered = [replace(batch, key=BatchKey(0, number)) for number, batch in enumerate(found * 2)]
        once = views_file_bytes(numbered[: len(found)])
        per_row = (views_file_bytes(numbered) - once) / rows
        file = max(once - per_row * rows, 0)
        stored = manifest.files_of("views")
        if stored:
            used = sum(entry.bytes for entry in stored) - file * len(stored)
            per_row = max(per_row, used / max(manifest.counts.rows, 1))
        return file, per_row


def _labels_file(payloads: Sequence[Payload], rows: Sequence[int], codec: Codec, classes: int) -> int:
    keys = [BatchKey(0, number) for number in range(len(payloads))]
    sink = pa.MockOutputStream()
    write_labels(sink, keys, payloads, rows, list(map(payload_bytes, payloads)), codec, classes)
    return int(sink.size())


def _batches(rows: int, bounds: tuple[int, int], batch_size: int) -> int:
    """Return how many batches hold `rows` rows, after limiting `rows` to the bounds."""
    return -(-min(max(rows, bounds[0]), bounds[1]) // batch_size)
