"""Probes: outputs of a teacher on a few random images, recorded when a pool is built.

Outputs depend not only on the weights, but also on the network's code, normalisation and resizing. Probes
are compared with a tolerance, so that other devices and precisions pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lpld_labels.format.manifest import PoolHeader

PROBE = "probe"  # Lineage-step parameter that holds a probe, a list of numbers.
TOLERANCE = 0.02


def probe_difference(recorded: Any, now: Sequence[float]) -> float:
    """Return the RMS difference of two probes relative to their spread; infinity if not comparable."""
    try:
        first, second = (np.asarray(values, np.float64) for values in (recorded, now))
    except (TypeError, ValueError):
        return np.inf
    if first.shape != second.shape or not np.isfinite([first, second]).all():
        return np.inf
    spread = max(first.std(), second.std())
    difference = float(np.sqrt(np.mean((first - second) ** 2)))
    return float(difference / spread) if spread else difference


def probes_of(header: PoolHeader) -> Iterator[Any]:
    """Yield the probes in the lineages of a pool and of the pools that it was merged from."""
    for step in header.lineage:
        yield from _probes(step.parameters)


def _probes(parameters: Mapping[str, Any]) -> Iterator[Any]:
    if PROBE in parameters:
        yield parameters[PROBE]
    for pool in parameters.get("pools", ()):
        for step in pool["lineage"]:
            yield from _probes(step["parameters"])
