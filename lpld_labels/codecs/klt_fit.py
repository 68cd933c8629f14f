"""Fit `klt` to a pool: its principal directions, how many to keep, and the step that meets the target.

Up to EXACT_CLASSES classes the C x C scatter matrix is accumulated and diagonalised. For more classes it
would not fit into memory, but labels of a linear head span few directions (at most as many as its input
features). A randomised range finder finds them: multiply the scatter matrix (which is never formed) by random
vectors, orthonormalise, repeat, and diagonalise in that subspace.

At step s, a coefficient has a squared error of about s^2/12. One more bit would quarter this error, so a bit
is worth ln(2) s^2/6 of squared error. A direction is kept if it saves more error over all rows than its bits
(entries and coefficients) are worth. Entries get the precision at which another bit would not pay. So the
basis is small and coarse for 10,000 rows, but large and fine for 60 million rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lpld_labels.codecs.base import Codec, FloatArray
from lpld_labels.codecs.fidelity import TEMPERATURES, Fidelity, FidelityMeter, payload_bytes, rebatched
from lpld_labels.codecs.floats import converted
from lpld_labels.codecs.klt import ROUNDING, KltCodec, KltTables
from lpld_labels.codecs.label_semantics import as_finite_logits, check_temperature
from lpld_labels.codecs.packing import LARGEST, band_edges
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import LabelArray

EXACT_CLASSES = 2048
MOST_DIRECTIONS = 1088  # Directions of the range finder: 1024 and a margin, so that all 1024 are accurate.
POWER_ROUNDS = 2
ROWS_AT_ONCE = 1024
ROUNDING_SHARE = 1e-9  # Variance that float32 rounding may cause, relative to the largest variance.
# Bounds of the steps tried, relative to the largest spread. The finest step is finer than float16 labels.
FINEST, COARSEST = 2.0**-9, 4.0
START = math.log(8)  # The search starts at an eighth of the largest spread, near the step of most pools.
TOLERANCE = 0.004  # Relative accuracy of the step.
PEAKS = (1, 2, 4, 8, 16)  # One peak costs 2 bytes per row and keeps argmax. More peaks help at low T.
GAUSSIAN_BITS = 0.5 * math.log2(2 * math.pi * math.e)  # Entropy of a unit Gaussian at fine quantisation.


class KltFitter:
    """Fits klt codecs for one pool to a sample of its labels.

    fit, tune: blocks of float16/float32 [B, C] labels; directions are fitted to `fit`, all other settings
    to `tune`. rows, batch_size: number of rows and batch size of the pool to encode.
    """

    def __init__(
        self,
        *,
        fit: Sequence[LabelArray],
        tune: Sequence[LabelArray],
        rows: int,
        batch_size: int,
        label_kind: str = "logits",
        seed: int = 0,
    ) -> None:
        if not sum(map(len, fit)) or not sum(map(len, tune)):
            raise InvalidArgumentError(
                "too few labels to fit codec 'klt'", expected="at least 2 rows", hint="use codec 'int8'"
            )
        self.rows = rows
        self.batch_size = batch_size
        self.label_kind = label_kind
        self.seed = seed
        self._tune = [converted(block, np.float32) for block in tune]
        self._spectrum = find_spectrum([_logits(block, label_kind) for block in fit], seed=seed)
        tuned = [_logits(block, label_kind) for block in tune]
        self._coordinates = self._spectrum.coordinates(tuned)
        # Spread of the coefficients of the constant vector.
        shifts = [(block - self._spectrum.mean).mean(axis=1) for block in tuned]
        self._shift = float(np.concatenate(shifts).std() * math.sqrt(len(self._spectrum.mean)))
        self._measured: dict[tuple[bytes, object], float] = {}  # Key: (codec identity, quantity).

    def for_rows(self, rows: int) -> KltFitter:
        other = copy.copy(self)
        other.rows = rows
        return other

    def codec(self, step: float, *, peaks: int = 1) -> KltCodec:
        # Few digits, because the manifest shows the step.
        step = float(f"{step:.6g}")
        if not (step > 0 and math.isfinite(step)):
            raise InvalidArgumentError("quantisation step is wrong", expected="a number > 0", got=step)
        spreads = self._spectrum.spreads
        grain = self._grain(step)
        count = self._worthwhile(step, grain)
        vectors = np.rint(self._spectrum.directions[:count] / grain[:count, None]).astype(np.int16)
        # The row mean is always the first coefficient, although its spread may be small.
        order = np.concatenate([spreads[:1] if count else [self._shift], spreads[:count]])
        mean = self._spectrum.mean.astype(np.float16)
        return KltCodec(
            tables=KltTables(vectors=vectors, scales=grain[:count], mean=mean),
            peaks=peaks,
            step=step,
            edges=band_edges(order, self.batch_size),
            label_kind=self.label_kind,
            target={"step": step},
        )

    def for_fidelity(self, fidelity: float, *, temperature: float) -> KltCodec:
        """Return the smallest codec that reaches `fidelity` (0..1) at a temperature."""
        if not 0 < fidelity < 1:
            raise InvalidArgumentError("fidelity is wrong", expected="a number between 0 and 1", got=fidelity)
        check_temperature(temperature)

        def excess(codec: KltCodec) -> float:
            return math.log(max(self._lost(codec, temperature), 1e-12) / (1 - fidelity))

        codec = self._best(excess)
        if codec is None:
            finest = self.codec(self._scale * FINEST, peaks=self._peaks[-1])
            best = self.measure(finest, temperatures=(temperature,))
            sampled = sum(len(block) for block in self._tune)
            raise InvalidArgumentError(
                "codec 'klt' cannot reach this fidelity on these labels",
                expected=f"at most {best.kept[temperature]:.4f} at T = {temperature:g}",
                got=fidelity,
                hint=f"request a lower fidelity, or use 'int8'; {sampled} rows were measured",
            )
        codec.target = {"fidelity": fidelity, "temperature": temperature, "seed": self.seed}
        return codec

    def measure(self, codec: KltCodec, *, temperatures: Sequence[float] = TEMPERATURES) -> Fidelity:
        meter = FidelityMeter(temperatures=temperatures, label_kind=self.label_kind)
        for block in self._tune:
            meter.add(block, codec.approximated(block))
        return meter.result()

    def bytes_per_row(self, codec: Codec) -> float:
        """Return bytes per row: the payload, measured on full batches, plus a share of the tables."""

        def payload() -> float:
            batches = rebatched(self._tune, self.batch_size)
            used = sum(payload_bytes(codec.encode(batch).payload) for batch in batches)
            return used / sum(map(len, batches))

        return self._once(codec, "payload", payload) + sum(map(len, codec.tables().values())) / self.rows

    def _lost(self, codec: KltCodec, temperature: float) -> float:
        return self._once(
            codec, temperature, lambda: 1 - self.measure(codec, temperatures=(temperature,)).kept[temperature]
        )

    def _once(self, codec: Codec, what: object, measure: Callable[[], float]) -> float:
        key = codec.identity(), what
        if key not in self._measured:
            self._measured[key] = measure()
        return self._measured[key]

    @property
    def _scale(self) -> float:
        return max(self._shift, float(self._spectrum.spreads.max(initial=0))) or 1.0

    def _grain(self, step: float) -> FloatArray:
        directions, spreads = self._spectrum.directions, self._spectrum.spreads
        classes = directions.shape[1]
        grain: FloatArray = step / (spreads * math.sqrt(self.rows))
        # Not so coarse that a direction is lost, and not so fine that int16 overflows.
        grain = np.minimum(grain, 1 / math.sqrt(classes))
        finest = np.abs(directions).max(axis=1, initial=0) / LARGEST
        return np.asarray(np.maximum(grain, finest), np.float32)

    def _worthwhile(self, step: float, grain: FloatArray) -> int:
        if not len(grain):
            return 0
        bit = math.log(2) * step**2 / 6
        integers = np.floor(np.abs(self._coordinates) / step + ROUNDING) * np.sign(self._coordinates)
        error = (self._coordinates - integers * step) ** 2
        saved = (self._coordinates**2 - error).mean(axis=0)
        classes = self._spectrum.directions.shape[1]
        own = classes * (GAUSSIAN_BITS - np.log2(grain * math.sqrt(classes)))
        profit = self.rows * (saved - bit * _entropy(integers)) - bit * own
        running = np.cumsum(profit)
        best = int(running.argmax())
        return best + 1 if running[best] > 0 else 0

    @property
    def _peaks(self) -> tuple[int, ...]:
        """Numbers of corrected labels per row to try, ascending; at most a quarter of the classes."""
        most = max(len(self._spectrum.mean) // 4, 1)
        return tuple(peaks for peaks in PEAKS if peaks <= most)

    def _best(self, excess: Callable[[KltCodec], float]) -> KltCodec | None:
        """Try all of `_peaks`. Return the smallest codec with excess <= 0, or None if there is none."""
        best, least = None, math.inf
        for peaks in self._peaks:
            near = None if best is None else best.step
            codec = self._just_within(excess, peaks, near)
            if codec is None:
                continue
            paid = self.bytes_per_row(codec)
            if paid >= least:
                break
            best, least = codec, paid
        return best

    def _just_within(
        self, excess: Callable[[KltCodec], float], peaks: int, near: float | None
    ) -> KltCodec | None:
        """Return the codec with the largest excess <= 0. Return None if the finest step's excess is above 0.

        excess: returns log(loss of a codec / allowed loss). It is nearly linear in log(step), so false
        position finds its root fast. near: a step that may be close to the solution, or None.
        """
        bounds = math.log(self._scale * FINEST), math.log(self._scale * COARSEST)
        worse = math.log(2 if near is None else 1.1)

        def tried(place: float) -> tuple[float, float, KltCodec]:
            place = float(np.clip(place, *bounds))
            codec = self.codec(math.exp(place), peaks=peaks)
            return place, excess(codec), codec

        start = math.log(self._scale) - START if near is None else math.log(near)
        good = bad = tried(start)
        while good[1] > 0:
            if good[0] in bounds:
                return None
            bad, good = good, tried(good[0] - worse)
            worse *= 1.5
        while bad[1] <= 0:
            if bad[0] in bounds:
                return bad[2]
            good, bad = bad, tried(bad[0] + worse)
            worse *= 1.5
        weight = 1.0
        while abs(good[0] - bad[0]) > TOLERANCE and good[1] < -TOLERANCE / 4:
            share = good[1] / (good[1] - weight * bad[1])
            # The Illinois rule halves the weight of an end that does not move, so that both ends converge.
            middle = tried(good[0] + min(max(share, 0.05), 0.95) * (bad[0] - good[0]))
            if middle[1] <= 0:
                good, weight = middle, weight / 2
            else:
                bad, weight = middle, 1.0
        return good[2]


def _entropy(integers: FloatArray) -> FloatArray:
    """Return the empirical entropy of each column in bits: float32 [K]. integers: [n, K]."""
    limit = 255
    codes = np.clip(integers, -limit, limit).astype(np.int64) + limit
    width = 2 * limit + 1
    columns = integers.shape[1]
    counts = np.bincount((codes + np.arange(columns) * width).ravel(), minlength=columns * width)
    share = counts.reshape(columns, width) / len(integers)
    return np.asarray(-(share * np.log2(np.where(share > 0, share, 1))).sum(axis=1), np.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum:
    """Mean and principal directions of some labels.

    mean: float32 [C]. directions: float32 [K, C], orthonormal, by descending spread; each sums to 0, because
    row means are coded separately. spreads: float32 [K], standard deviation of labels along each direction.
    """

    mean: FloatArray
    directions: FloatArray
    spreads: FloatArray

    def coordinates(self, blocks: Sequence[FloatArray]) -> FloatArray:
        parts = [_centred(group, self.mean) @ self.directions.T for group in _groups(blocks)]
        return np.concatenate(parts) if parts else np.empty((0, len(self.directions)), np.float32)


def find_spectrum(blocks: Sequence[FloatArray], *, seed: int = 0) -> Spectrum:
    """Return the mean and principal directions of logits. blocks: float32 [B, C] each."""
    rows = sum(len(block) for block in blocks)
    classes = blocks[0].shape[1]
    total = np.zeros(classes)
    for block in blocks:
        total += block.sum(axis=0, dtype=np.float64)
    mean = (total / rows).astype(np.float32)
    if classes <= EXACT_CLASSES:
        frame = np.eye(classes, dtype=np.float32)
    else:
        frame = _range(blocks, mean, min(MOST_DIRECTIONS, rows, classes), seed)
    scatter = np.zeros((frame.shape[1], frame.shape[1]))
    for group in _groups(blocks):
        centred = _centred(group, mean)
        seen = (centred if classes <= EXACT_CLASSES else centred @ frame).astype(np.float64)
        scatter += seen.T @ seen
    values, rotation = np.linalg.eigh(scatter / rows)
    # n centred rows span at most n - 1 directions. Variances below the floor are rounding errors.
    floor = max(float(values[-1]), 0.0) * ROUNDING_SHARE
    count = min(int((values > floor).sum()), rows - 1)
    order = np.argsort(values)[::-1][:count]
    directions = np.ascontiguousarray((frame @ rotation[:, order].astype(np.float32)).T)
    spreads = np.sqrt(values[order]).astype(np.float32)
    return Spectrum(mean=mean, directions=_oriented(directions), spreads=spreads)


def _logits(block: LabelArray, label_kind: str) -> FloatArray:
    logits = as_finite_logits(converted(block, np.float32), label_kind)
    largest = float(np.abs(logits).max(initial=0))
    limit = float(np.finfo(np.float16).max)  # The tables store the mean of logits in half precision.
    if largest > limit:
        raise InvalidArgumentError(
            "labels are too large for codec 'klt'",
            expected=f"at most {limit:g}",
            got=largest,
            hint="use 'f32'",
        )
    return logits


def _centred(group: Sequence[FloatArray], mean: FloatArray) -> FloatArray:
    values = np.concatenate(group) - mean
    values -= values.mean(axis=1, keepdims=True)
    return values


def _groups(blocks: Sequence[FloatArray]) -> Iterator[list[FloatArray]]:
    """Yield groups of blocks with at least ROWS_AT_ONCE rows, because large matrix products are faster."""
    group: list[FloatArray] = []
    for block in blocks:
        group.append(block)
        if sum(map(len, group)) >= ROWS_AT_ONCE:
            yield group
            group = []
    if group:
        yield group


def _range(blocks: Sequence[FloatArray], mean: FloatArray, count: int, seed: int) -> FloatArray:
    """Return an orthonormal basis [C, count] of the subspace in which the logits vary most."""
    classes = len(mean)
    frame = keyed_generator(seed, classes, count).standard_normal((classes, count), np.float32)
    for _ in range(POWER_ROUNDS):
        product = np.zeros_like(frame)
        for group in _groups(blocks):
            centred = _centred(group, mean)
            product += centred.T @ (centred @ frame)
        frame = np.ascontiguousarray(np.linalg.qr(product)[0])
    return frame


def _oriented(directions: FloatArray) -> FloatArray:
    """Fix the arbitrary sign of each direction: make the entry of largest magnitude positive."""
    if not directions.size:
        return directions
    largest = np.abs(directions).argmax(axis=1)
    directions *= np.sign(directions[np.arange(len(directions)), largest])[:, None]
    return directions
