"""What the measurements must show, checked one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.rate_distortion.measure import Point, RateDistortion
from lpld_labels.codecs.fidelity import TEMPERATURES


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement, whether it holds, and the figures behind it."""

    text: str
    holds: bool
    found: str

    def as_json(self) -> dict[str, Any]:
        """Return the claim as JSON values."""
        return asdict(self)


def check_claims(curve: RateDistortion, replay: Mapping[str, Any], many: Mapping[str, Any]) -> list[Claim]:
    """Return all claims with their figures."""
    klt = [point for point in curve.points if point.family.startswith("klt")]
    asked = curve.family("klt, by fidelity")
    rivals = [point for point in curve.points if point.family.startswith("top-k")]
    grids = curve.family("int-n")
    slowest = min(asked, key=lambda point: point.encode_rate)
    excess = curve.coded / curve.entropy - 1
    return [
        _within(klt, 180, {20.0: 0.96, 1.0: 0.99}),
        _within(klt, 100, {20.0: 0.90}),
        _above("klt keeps more than top-k in as many bytes, at every T", curve, rivals),
        _above("klt keeps more than int-n in as many bytes, at every T", curve, grids),
        Claim(
            text="payload within 10 % of the empirical entropy at step 1",
            holds=excess <= 0.10,
            found=f"{100 * excess:.1f} % above {curve.entropy:.1f} bytes per row",
        ),
        Claim(
            text="klt encodes at least 20 MB of fp16 logits per second and core",
            holds=slowest.encode_rate >= 20,
            found=f"{slowest.encode_rate:.0f} MB/s at the slowest setting by fidelity ({slowest.name})",
        ),
        Claim(
            text="decoding costs at most 10 % of replaying its images",
            holds=replay["share"] <= 0.10,
            found=f"{100 * replay['share']:.1f} %",
        ),
        Claim(
            text=f"{many['classes']} classes at .97, basis counted at 1M rows: at least 60x below fp16",
            holds=many["smaller_than_fp16"] >= 60 and many["kept"]["20"] >= 0.969,
            found=f"{many['smaller_than_fp16']}x, kept {many['kept']['20']}",
        ),
        Claim(
            text=f"{many['classes']} classes are fitted under 4 GB and 5 minutes",
            holds=many["fit_seconds"] <= 300 and many["peak_memory_mb"] <= 4000,
            found=f"{many['fit_seconds']} s, {many['peak_memory_mb']} MB",
        ),
    ]


def _within(points: Sequence[Point], limit: float, kept: Mapping[float, float]) -> Claim:
    """Check that some setting keeps enough within a number of payload bytes per row."""
    text = " and ".join(f"{share:g} at T = {temperature:g}" for temperature, share in kept.items())
    good = [p for p in points if all(p.fidelity.kept[t] >= share for t, share in kept.items())]
    best = min(good, key=lambda point: point.payload, default=None)
    found = "no setting keeps that much"
    if best is not None:
        figures = ", ".join(f"{best.fidelity.kept[t]:.4f}" for t in kept)
        found = f"{best.payload:.1f} bytes ({best.name}: {figures})"
    return Claim(
        text=f"klt keeps {text} in at most {limit:g} bytes per row",
        holds=best is not None and best.payload <= limit,
        found=found,
    )


def _above(text: str, curve: RateDistortion, others: Sequence[Point]) -> Claim:
    """Check that the curve of klt lies above every other point, at every temperature."""
    worst, where = np.inf, ""
    for other in others:
        for temperature in TEMPERATURES:
            lost = 1 - other.fidelity.kept[temperature]
            # How many times more is lost than klt loses in as many bytes.
            ratio = lost / lost_at(curve.envelope(temperature), other.payload, temperature)
            if ratio < worst:
                worst, where = ratio, f"{other.name} at T = {temperature:g}"
    found = f"the others lose {worst:.2f} times as much or more (closest: {where})"
    return Claim(text=text, holds=worst > 1, found=found)


def lost_at(points: Sequence[Point], payload: float, temperature: float) -> float:
    """Return the share that klt loses at a payload: between settings its curve is straight in logarithms.

    Below the smallest setting everything counts as lost; beyond the largest nothing more is gained.
    """
    sizes = np.log([point.payload for point in points])
    losses = np.log([1 - point.fidelity.kept[temperature] for point in points])
    return float(np.exp(np.interp(np.log(payload), sizes, losses, left=0.0)))
