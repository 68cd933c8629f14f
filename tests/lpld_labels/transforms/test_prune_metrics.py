"""Pruning by metrics: their values, the ends they keep, and extremes left out."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import BatchKey, PoolReader
from lpld_labels.transforms.prune import plan_prune
from lpld_labels.transforms.settings import PruneSettings
from tests.factories import make_batch, make_header, write_pool
from tests.lpld_labels.transforms.partial_batches import EPOCHS, PER_EPOCH, with_partials


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> PoolReader:
    return write_pool(tmp_path_factory.mktemp("pools") / "pool", with_partials())


COMPLETE = EPOCHS * (PER_EPOCH - 1)


def scores(pool: PoolReader, metric: str) -> dict[BatchKey, float]:
    """Derive a metric row by row, in plain Python and float64."""
    found = {}
    for batch in pool:
        values = []
        for row, image in zip(batch.labels.astype(np.float64), batch.images.tolist(), strict=True):
            own = int(pool.images.classes[image])
            ordered = sorted(row.tolist())
            values.append(
                {
                    "correct": float(max(range(len(row)), key=lambda c: row[c]) == own),
                    "diff": abs(ordered[-1] - ordered[-2]),
                    "diff_signed": row[own] - max(row[c] for c in range(len(row)) if c != own),
                    "cut_ratio": batch.mix.strength if batch.mix else 1.0,
                    "confidence": float(np.exp(ordered[-1]) / np.exp(row).sum()),
                }[metric]
            )
        found[batch.key] = sum(values) / len(values)
    return found


@pytest.mark.parametrize("metric", ["correct", "diff", "diff_signed", "cut_ratio", "confidence"])
def test_metrics_agree_with_their_definitions(pool: PoolReader, metric: Any) -> None:
    plan = plan_prune(pool, PruneSettings(ratio=2, by=metric, prefer="hard"))
    expected = scores(pool, metric)
    assert plan.scores is not None
    for place, score in zip(plan.candidates.tolist(), plan.scores.tolist(), strict=True):
        assert score == pytest.approx(expected[pool.index.key(place)], rel=1e-5)


def test_metrics_of_probabilities_are_those_of_their_logits(tmp_path: Path) -> None:
    batches = [make_batch(0, b, dtype=np.float32) for b in range(4)]
    logits = write_pool(tmp_path / "logits", batches, codec="f32")
    probabilities = []
    for batch in batches:
        power = np.exp(batch.labels.astype(np.float64))
        labels = (power / power.sum(axis=1, keepdims=True)).astype(np.float32)
        probabilities.append(replace(batch, labels=labels))
    header = make_header(label_kind="probabilities")
    stored = write_pool(tmp_path / "p", probabilities, codec="f32", header=header)
    for metric in ("correct", "diff", "diff_signed", "confidence"):
        wanted = PruneSettings(ratio=1, by=metric, prefer="easy")
        found, expected = (plan_prune(p, wanted).scores for p in (stored, logits))
        assert found is not None
        assert expected is not None
        assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-4)


@pytest.mark.parametrize("prefer", ["hard", "easy", "uniform"])
def test_preference_keeps_its_end_of_the_scores(pool: PoolReader, prefer: Any) -> None:
    ordered = sorted((score, key) for key, score in scores(pool, "diff").items() if key.batch < PER_EPOCH - 1)
    plan = plan_prune(pool, PruneSettings(ratio=5, by="diff", prefer=prefer))
    ranks = sorted([key for _, key in ordered].index(pool.index.key(p)) for p in plan.kept.tolist())
    expected = {"hard": list(range(12)), "easy": list(range(48, 60)), "uniform": list(range(2, 60, 5))}
    assert ranks == expected[prefer]


@pytest.mark.parametrize("prefer", ["hard", "easy", "uniform"])
def test_preference_by_epoch_takes_whole_epochs(pool: PoolReader, prefer: Any) -> None:
    mean: dict[int, float] = defaultdict(float)
    for key, score in scores(pool, "confidence").items():
        mean[key.epoch] += score * (key.batch < PER_EPOCH - 1)
    ordered = sorted(range(EPOCHS), key=lambda e: mean[e])
    plan = plan_prune(pool, PruneSettings(ratio=5, level="epoch", by="confidence", prefer=prefer))
    kept = Counter(pool.index.key(p).epoch for p in plan.kept.tolist())
    expected = {"hard": ordered[:3], "easy": ordered[-3:], "uniform": [ordered[i] for i in (2, 6, 10)]}
    assert set(kept) == set(expected[prefer])
    assert sorted(kept.values()) == [2, 5, 5]
