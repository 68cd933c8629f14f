"""What one process plays of an epoch: a run of the epoch's rows, cut at label batches.

An epoch is its label batches' rows laid end to end. With W processes, process r takes rows
[r * n, (r + 1) * n) with n = rows // W: equal shares, nothing twice, and at most W - 1 rows at the very
end left out. Runs rather than every W-th row, because views are mixed within their label batch: a
label batch is then rendered by one process, or by two where a run ends inside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import InvalidArgumentError

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Share:
    """Units [starts[i], stops[i]) of label batch places[i], in order: int64 [n] each.

    A unit is a row, or a whole label batch where a loader does not cut them.
    """

    places: Integers
    starts: Integers
    stops: Integers

    @property
    def units(self) -> int:
        return int((self.stops - self.starts).sum())


def share_rows(sizes: npt.NDArray[np.integer], world: int) -> int:
    """Return how many of an epoch's rows each process plays; `sizes` are the rows of its label batches."""
    rows = int(sizes.sum()) // world
    if rows == 0:
        raise InvalidArgumentError(
            "an epoch has too few rows for so many processes",
            expected=f"at least {world}",
            got=int(sizes.sum()),
            hint="raise batches_per_epoch",
        )
    return rows


def share_of(
    places: Integers, sizes: npt.NDArray[np.integer], *, rank: int, world: int, skip: int = 0
) -> Share:
    """Return the share of process `rank`, without its first `skip` rows.

    places: int64 [n], the epoch's label batches. sizes: [n], their rows.
    """
    if not 0 <= rank < world:
        raise InvalidArgumentError("rank is out of range", expected=f"0 to {world - 1}", got=rank)
    rows = share_rows(sizes, world)
    ends = np.cumsum(sizes, dtype=np.int64)
    begins = ends - sizes
    first, last = rank * rows + skip, (rank + 1) * rows
    starts = np.clip(first - begins, 0, sizes)
    stops = np.clip(last - begins, 0, sizes)
    played = stops > starts
    return Share(places=places[played], starts=starts[played], stops=stops[played])
