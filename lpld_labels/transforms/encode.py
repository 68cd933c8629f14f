"""Rewrite a pool with another codec, or with its views stored or drawn; everything else is copied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lpld_labels.codecs.fidelity import TEMPERATURES, Fidelity
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Executor, Progress
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.schema import Views
from lpld_labels.io.addresses import Location
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.views import require_drawn
from lpld_labels.results import Result
from lpld_labels.transforms import lineage
from lpld_labels.transforms.batch_sources import transform_plan
from lpld_labels.transforms.pipeline import finished_before, require_output, run_plan
from lpld_labels.transforms.remote_output import writes_pools
from lpld_labels.transforms.sample import LabelSample
from lpld_labels.transforms.settings import DEFAULT_TEMPERATURE, EncodeSettings


@dataclass(frozen=True, kw_only=True, repr=False)
class EncodeResult(Result):
    """before, after: pool bytes. fidelity: on rows not used to fit the codec; None if labels were copied."""

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
    """Write the pool to `out` with the codec and views of the settings.

    overwrite: replace another pool that is there. progress: called with (done, total) batches.
    """
    if settings.codec is not None:
        refuse_lossy(pool, accept=settings.from_lossy)
    require_drawable(pool, settings.views)
    step = lineage.step("encode", pool.manifest.content_digest, settings, codec_before=pool.codec.name)
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
