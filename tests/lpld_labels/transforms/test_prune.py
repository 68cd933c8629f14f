import tempfile
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpld_labels import BatchKey, LabelBatch, PoolReader
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.random_streams import lowest_ranked
from lpld_labels.inspect.check import check_pool
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.prune import plan_prune, write_pruned
from lpld_labels.transforms.settings import EncodeSettings, PruneSettings
from tests.factories import (
    assert_same_views,
    make_batch,
    make_batches,
    make_header,
    prune_pool,
    tree,
    write_pool,
)

EPOCHS, PER_EPOCH = 12, 6
COMPLETE = EPOCHS * (PER_EPOCH - 1)
LEVELS = ("batch", "epoch")


def with_partials(**options: Any) -> list[LabelBatch]:
    sizes = [8] * (PER_EPOCH - 1) + [5]
    return [make_batch(e, b, rows=rows, **options) for e in range(EPOCHS) for b, rows in enumerate(sizes)]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> PoolReader:
    return write_pool(tmp_path_factory.mktemp("pools") / "pool", with_partials())


def pruned(pool: PoolReader, out: Path, **settings: Any) -> PoolReader:
    prune_pool(pool, out, PruneSettings(**settings))
    return PoolReader(out)


def kept(pool: PoolReader, **settings: Any) -> list[BatchKey]:
    return plan_prune(pool, PruneSettings(**settings)).keys


@pytest.mark.parametrize("codec", ["f16", "f16:plain", "f32", "int8", "int4", "topk:3", "klt"])
def test_survivors_are_bit_identical(tmp_path: Path, codec: str) -> None:
    plain = codec in ("f16", "int8")
    features: dict[str, Any] = {"mix": "none"} if plain else {"mix": "mixup", "cutout": True, "patches": 3}
    fitted = codec == "klt"
    parent = write_pool(tmp_path / "parent", with_partials(**features), codec="f16" if fitted else codec)
    if fitted:
        encode_pool(parent, tmp_path / "klt", EncodeSettings(codec="klt", fidelity=0.9))
        parent = PoolReader(tmp_path / "klt")
    child = pruned(parent, tmp_path / "child", ratio=4)
    assert len(child) == COMPLETE // 4
    for key in child.keys:
        ours, theirs = child.read(key), parent.read(key)
        assert_same_views(ours, theirs)
        assert ours.labels.tobytes() == theirs.labels.tobytes()
        assert child.read_encoded(key).digest == parent.read_encoded(key).digest
        assert child.read_encoded(key).payload == parent.read_encoded(key).payload
    assert [step.operation for step in child.header.lineage] == ["encode"] * fitted + ["prune"]
    assert check_pool(child.location).whole


@pytest.mark.parametrize("level", LEVELS)
# 60 / 1.2 is 50 on paper and 49.99... in floating point.
@pytest.mark.parametrize(("ratio", "count"), [(1, 60), (1.2, 50), (2.5, 24), (7, 8), (40, 1), (60, 1)])
def test_floor_of_the_complete_batches_stay(pool: PoolReader, level: str, ratio: float, count: int) -> None:
    keys = kept(pool, ratio=ratio, level=level)
    assert len(keys) == count
    assert all(key.batch < PER_EPOCH - 1 for key in keys)


@pytest.mark.parametrize("level", LEVELS)
def test_random_prunings_nest(pool: PoolReader, tmp_path: Path, level: str) -> None:
    once = pruned(pool, tmp_path / "once", ratio=10, level=level)
    twice = pruned(once, tmp_path / "twice", ratio=3, level=level)
    direct = pruned(pool, tmp_path / "direct", ratio=30, level=level)
    assert twice.manifest.content_digest == direct.manifest.content_digest
    assert set(direct.keys) < set(once.keys)


@given(seed=st.integers(0, 2**40), first=st.integers(1, 12), second=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_any_two_prunings_nest(pool: PoolReader, seed: int, first: int, second: int) -> None:
    for level in LEVELS:
        outer = kept(pool, ratio=first, seed=seed, level=level)
        inner = kept(pool, ratio=first * second, seed=seed, level=level)
        assert len(inner) == len(outer) // second
        assert set(inner) <= set(outer)


def test_the_random_order_is_a_promise(pool: PoolReader) -> None:
    # Changing these would make old prunings and new ones of the same pool not nest.
    assert kept(pool, ratio=8, seed=7) == [(3, 1), (3, 2), (5, 1), (6, 3), (8, 1), (9, 3), (10, 1)]
    epochs = [(2, 0), (2, 1), (2, 2), (2, 3), (2, 4), (7, 0), (7, 1)]
    assert kept(pool, ratio=8, seed=7, level="epoch") == epochs
    # Builds choose the same batches.
    complete = [key for key in pool.keys if key.batch < PER_EPOCH - 1]
    assert kept(pool, ratio=6) == lowest_ranked(0, complete, COMPLETE // 6)


def test_seed_decides_and_lineage_records(pool: PoolReader, tmp_path: Path) -> None:
    assert kept(pool, ratio=5) == kept(pool, ratio=5, seed=0)
    assert kept(pool, ratio=5) != kept(pool, ratio=5, seed=1)
    once = pruned(pool, tmp_path / "once", ratio=5, seed=1)
    (step,) = once.header.lineage
    chosen = {"ratio": 5, "budget": None, "level": "batch", "by": "random", "prefer": None, "seed": 1}
    results = {"random_seed": 1, "kept_batches": 12, "candidate_batches": COMPLETE}
    assert (step.operation, step.parameters) == ("prune", {"settings": chosen, **results})
    twice = pruned(once, tmp_path / "twice", ratio=2)
    parents = [pool.manifest.content_digest, once.manifest.content_digest]
    assert [step.parent_digest for step in twice.header.lineage] == parents


@pytest.mark.parametrize(
    ("codec", "budget"),
    [("f16", 16_000), ("int8", 16_000), ("int8", 25_000), ("f16", 40_000), ("f16", 10**9)],
)
def test_budget_is_met_and_used(tmp_path: Path, codec: str, budget: int) -> None:
    batches = [make_batch(e, b, classes=20) for e in range(20) for b in range(6)]
    parent = write_pool(tmp_path / "parent", batches, codec=codec)
    child = pruned(parent, tmp_path / "child", budget=budget)
    on_disk = sum(f.stat().st_size for f in (tmp_path / "child").rglob("*") if f.is_file())
    assert on_disk == pool_bytes(child.manifest) <= budget
    assert budget - on_disk < 9000 or len(child) == 120
    assert len(child) == 120 or budget < 10**9
    assert list(child.keys) == lowest_ranked(0, list(parent.keys), len(child))


def test_random_budgets_are_met_and_leave_less_than_a_batch(tmp_path: Path) -> None:
    outcomes = Counter(random_budget(tmp_path / str(seed), seed) for seed in range(20))
    assert outcomes["met"] > 10
    assert outcomes["too small"] > 0
    assert outcomes["wrong"] == 0


def test_weighing_writes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with write_pool(tmp_path / "pool", make_batches(3, 4)) as parent:
        before = tree(tmp_path)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
        monkeypatch.chdir(tmp_path)
        plan = plan_prune(parent, PruneSettings(budget=pool_bytes(parent.manifest) - 1))
        assert plan.size
        assert tree(tmp_path) == before


def random_budget(folder: Path, seed: int) -> str:
    """Prune a random small pool to a random budget; return what came of it."""
    rng = np.random.default_rng(seed)
    rows, classes = int(rng.integers(1, 40)), int(rng.integers(2, 200))
    batches = [make_batch(*divmod(n, 7), rows=rows, classes=classes) for n in range(int(rng.integers(2, 60)))]
    codec = str(rng.choice(["f16", "f16:plain", "int8", "topk:2"]))
    chosen: Any = {
        "prefer": str(rng.choice(["easy", "uniform"])),
        "level": str(rng.choice(["batch", "epoch"])),
    }
    with write_pool(folder / "pool", batches, codec=codec) as parent:
        budget = int(pool_bytes(parent.manifest) * rng.uniform(0.2, 1))
        options = PruneSettings(budget=budget, by="cut_ratio", **chosen)
        try:
            plan = plan_prune(parent, options)
        except InvalidArgumentError as error:
            if "budget is too small for even one batch" not in str(error):
                raise
            least = int(error.expected.split()[-2])
            return "too small" if plan_prune(parent, replace(options, budget=least)).count else "wrong"
        assert pool_bytes(write_pruned(plan, folder / "out")) == plan.most_bytes <= budget
        if plan.count == len(parent):
            return "everything"
        more = replace(plan.resized(plan.count + 1), settings=replace(options, budget=10**9))
        assert pool_bytes(write_pruned(more, folder / "more")) > budget
    return "met"


@pytest.mark.parametrize("codec", ["f16", "int8"])
def test_budget_too_small_names_one_that_is_enough(tmp_path: Path, codec: str) -> None:
    parent = write_pool(tmp_path / "parent", with_partials(), codec=codec)
    with pytest.raises(InvalidArgumentError, match="too small for even one batch") as refusal:
        prune_pool(parent, tmp_path / "out", PruneSettings(budget=3000))
    assert not (tmp_path / "out").exists()
    smallest = int(refusal.value.expected.split()[-2])
    child = pruned(parent, tmp_path / "out", budget=smallest)
    assert len(child) >= 1
    assert pool_bytes(child.manifest) <= smallest < 2 * pool_bytes(child.manifest)


def test_reads_only_what_stays(pool: PoolReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[BatchKey] = []
    read = PoolReader.read_encoded

    def recorded(self: PoolReader, key: BatchKey) -> Any:
        keys.append(key)
        return read(self, key)

    monkeypatch.setattr(PoolReader, "read_encoded", recorded)
    monkeypatch.setattr(PoolReader, "read_labels", lambda *_: pytest.fail("random pruning decoded labels"))
    child = pruned(pool, tmp_path / "out", ratio=6)
    assert sorted(keys) == list(child.keys)
    numbers = [pool.find(key) for key in keys]
    places = [(int(pool.index.shard[number]), int(pool.index.first_rows[number])) for number in numbers]
    assert all(first < second for first, second in pairwise(places))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": 0.5}, "expected a number >= 1, got 0.5"),
        ({"ratio": float("nan")}, "expected a number, got nan"),
        ({"ratio": COMPLETE + 1}, f"expected 1 to {COMPLETE}"),
        ({}, "either a ratio or a budget"),
        ({"ratio": 2, "budget": 5}, "either a ratio or a budget"),
        ({"ratio": 2, "by": "luck"}, "by is wrong"),
        ({"ratio": 2, "by": "diff"}, "by and prefer do not fit together"),
        ({"ratio": 2, "prefer": "hard"}, "by and prefer do not fit together"),
    ],
)
def test_bad_settings(pool: PoolReader, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        prune_pool(pool, tmp_path / "out", PruneSettings(**options))
    assert not (tmp_path / "out").exists()


def test_pools_without_a_complete_batch_can_be_pruned(tmp_path: Path) -> None:
    batches = [make_batch(0, number, rows=5) for number in range(4)]
    assert len(kept(write_pool(tmp_path, batches, header=make_header(batch_size=8)), ratio=2)) == 2


def scores(pool: PoolReader, metric: str) -> dict[BatchKey, float]:
    """Compute a metric row by row, in plain Python and float64."""
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
    keys = pool.index.keys_at(plan.candidates)
    assert plan.scores.tolist() == pytest.approx([expected[key] for key in keys], rel=1e-5)


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


@pytest.mark.parametrize(
    ("prefer", "ranks", "epochs"),
    [
        ("hard", range(12), (0, 1, 2)),
        ("easy", range(48, 60), (9, 10, 11)),
        ("uniform", range(2, 60, 5), (2, 6, 10)),
    ],
)
def test_prefer_easy_and_hard(pool: PoolReader, prefer: Any, ranks: range, epochs: tuple[int, ...]) -> None:
    ordered = sorted((score, key) for key, score in scores(pool, "diff").items() if key.batch < PER_EPOCH - 1)
    expected = sorted(ordered[rank][1] for rank in ranks)
    assert kept(pool, ratio=5, by="diff", prefer=prefer) == expected
    mean: dict[int, float] = defaultdict(float)
    for key, score in scores(pool, "confidence").items():
        mean[key.epoch] += score * (key.batch < PER_EPOCH - 1)
    by_score = sorted(range(EPOCHS), key=lambda e: mean[e])
    found = Counter(key.epoch for key in kept(pool, ratio=5, level="epoch", by="confidence", prefer=prefer))
    assert set(found) == {by_score[rank] for rank in epochs}
    assert sorted(found.values()) == [2, 5, 5]
