"""Where an import's batches come from: the units of its plan, read one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpld_labels.errors import LabelPoolError
from lpld_labels.interop.importers.base import ImportPlan, ImportTarget, Unit
from lpld_labels.interop.importers.formats import FORMATS
from lpld_labels.interop.importers.report import Hole, HoleLog
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.staging_plan import describe
from lpld_labels.transforms.engine import Draft


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What a process needs to know, once.

    source: the label folder. log: where files that are passed over are written down; None to stop at the
    first one.
    """

    format: str
    source: Path
    target: ImportTarget
    log: HoleLog | None

    def __call__(self, unit: Unit) -> Iterator[EncodedBatch]:
        """Read a unit."""

        def on_bad(path: Path, error: LabelPoolError) -> None:
            if self.log is None:
                raise error
            key = unit.keys[0] if len(unit.files) == 1 else None
            self.log.add(Hole(file=path.relative_to(self.source).as_posix(), why=error.problem, key=key))

        return FORMATS[self.format].read(unit, self.target, on_bad)

    def draft(self, pool: Path, plan: ImportPlan, purpose: dict[str, Any]) -> Draft:
        """Return the draft of the pool."""
        target = self.target
        return Draft(
            out=pool,
            header=target.header,
            images=target.images,
            codec=target.codec,
            source=self,
            pieces=plan.units,
            batches=plan.batches,
            purpose=purpose,
        )

    def made(self, location: Path, plan: ImportPlan) -> bool:
        """Whether a pool holds what importing now would give: every file is read again and compared."""
        target = self.target
        with PoolReader(location) as pool:
            found = describe(pool.header, pool.codec, pool.images.digest(), pool.manifest.views)
            if found != describe(target.header, target.codec, target.images.digest(), "stored"):
                return False
            count = 0
            for unit in plan.units():
                for batch in self.read_again(unit):
                    number = pool.index.find(batch.key)
                    if number is None or pool.index.digest(number) != batch.digest:
                        return False
                    count += 1
            return count == len(pool)

    def read_again(self, unit: Unit) -> Iterator[EncodedBatch]:
        """Read a unit for comparison: nothing is written down about its bad files."""
        return FORMATS[self.format].read(unit, self.target, self._pass_over)

    def _pass_over(self, path: Path, error: LabelPoolError) -> None:
        del path
        if self.log is None:
            raise error
