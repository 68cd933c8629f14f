"""Pruning: what survives, that it survives unchanged, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError, PoolConflictError, StagingMismatchError
from lpld_labels.format.random_streams import lowest_ranked
from lpld_labels.inspect.check import check_pool
from lpld_labels.pool import plan as plan_module
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.prune import plan_prune, prune_pool, write_pruned
from lpld_labels.transforms.settings import EncodeSettings, PruneSettings
from tests.factories import assert_same_views, make_batch, make_header, write_pool
from tests.lpld_labels.transforms.partial_batches import EPOCHS, PER_EPOCH, with_partials


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> PoolReader:
    return write_pool(tmp_path_factory.mktemp("pools") / "pool", with_partials())


COMPLETE = EPOCHS * (PER_EPOCH - 1)
GOLDEN = {
    "batch": [(3, 1), (3, 2), (5, 1), (6, 3), (8, 1), (9, 3), (10, 1)],
    "epoch": [(2, 0), (2, 1), (2, 2), (2, 3), (2, 4), (7, 0), (7, 1)],
}


def pruned(pool: PoolReader, out: Path, **settings: Any) -> PoolReader:
    prune_pool(pool, out, PruneSettings(**settings))
    return PoolReader(out)


@pytest.mark.parametrize("codec", ["f16", "f16:plain", "f32", "int8", "int4", "topk:3"])
@pytest.mark.parametrize("features", [{"mix": "none"}, {"mix": "mixup", "cutout": True, "patches": 3}])
def test_survivors_are_bit_identical(tmp_path: Path, codec: str, features: dict[str, Any]) -> None:
    parent = write_pool(tmp_path / "parent", with_partials(**features), codec=codec)
    child = pruned(parent, tmp_path / "child", ratio=4)
    assert len(child) == COMPLETE // 4
    for key in child.keys:
        ours, theirs = child.read(key), parent.read(key)
        assert_same_views(ours, theirs)
        assert ours.labels.tobytes() == theirs.labels.tobytes()
        assert child.read_encoded(key).digest == parent.read_encoded(key).digest
    assert check_pool(child.location).whole


def test_encoded_pools_can_be_pruned_and_pruned_ones_encoded(pool: PoolReader, tmp_path: Path) -> None:
    request = EncodeSettings(codec="klt", fidelity=0.9)
    encode_pool(pool, tmp_path / "encoded", request)
    encoded = PoolReader(tmp_path / "encoded")
    child = pruned(encoded, tmp_path / "child", ratio=6)
    for key in child.keys:
        assert child.read_encoded(key).payload == encoded.read_encoded(key).payload
        np.testing.assert_array_equal(child.read(key).labels, encoded.read(key).labels)
    assert [step.operation for step in child.header.lineage] == ["encode", "prune"]


def test_pools_are_found_by_uri(pool: PoolReader, tmp_path: Path) -> None:
    with PoolReader(f"file://{pool.location}") as remote:
        child = pruned(remote, tmp_path / "child", ratio=6)
    assert len(child) == COMPLETE // 6


@pytest.mark.parametrize("level", ["batch", "epoch"])
@pytest.mark.parametrize("ratio", [1, 2.5, 7, 40, COMPLETE])
def test_exactly_floor_of_the_complete_batches_stay(
    pool: PoolReader, tmp_path: Path, level: str, ratio: float
) -> None:
    child = pruned(pool, tmp_path / "out", ratio=ratio, level=level)
    assert len(child) == int(COMPLETE / ratio)
    assert set(child.index.rows.tolist()) == {8}


def test_ratios_divide_exactly(pool: PoolReader) -> None:
    # 60 / 1.2 is 50 on paper and 49.99... in floating point.
    assert plan_prune(pool, PruneSettings(ratio=1.2)).count == 50


@pytest.mark.parametrize("level", ["batch", "epoch"])
def test_random_prunings_nest(pool: PoolReader, tmp_path: Path, level: str) -> None:
    once = pruned(pool, tmp_path / "once", ratio=10, level=level)
    twice = pruned(once, tmp_path / "twice", ratio=3, level=level)
    direct = pruned(pool, tmp_path / "direct", ratio=30, level=level)
    assert twice.manifest.content_digest == direct.manifest.content_digest
    assert set(direct.keys) < set(once.keys)


def test_random_choice_is_that_of_builds(pool: PoolReader) -> None:
    complete = [key for key, rows in zip(pool.keys, pool.index.rows, strict=True) if rows == 8]
    plan = plan_prune(pool, PruneSettings(ratio=6))
    assert [pool.index.key(p) for p in plan.kept.tolist()] == lowest_ranked(0, complete, COMPLETE // 6)


def test_the_random_order_is_a_promise(pool: PoolReader) -> None:
    # Changing these would make old prunings and new ones of the same pool not nest.
    plans = {
        level: plan_prune(pool, PruneSettings(ratio=8, level=level, seed=7)) for level in ("batch", "epoch")
    }
    keys = {level: [tuple(pool.index.key(p)) for p in plan.kept.tolist()] for level, plan in plans.items()}
    assert keys == GOLDEN


def test_batch_level_mixes_epochs_and_epoch_level_keeps_them_whole(pool: PoolReader, tmp_path: Path) -> None:
    by_batch = pruned(pool, tmp_path / "batch", ratio=5, level="batch")
    assert len(set(by_batch.index.epochs.tolist())) >= 7
    by_epoch = pruned(pool, tmp_path / "epoch", ratio=5, level="epoch")
    assert sorted(Counter(by_epoch.index.epochs.tolist()).values()) == [2, 5, 5]
    (cut,) = [e for e, n in Counter(by_epoch.index.epochs.tolist()).items() if n == 2]
    assert [key.batch for key in by_epoch.keys if key.epoch == cut] == [0, 1]


def test_seed_decides_and_lineage_records(pool: PoolReader, tmp_path: Path) -> None:
    default = pruned(pool, tmp_path / "default", ratio=5)
    same = pruned(pool, tmp_path / "same", ratio=5, seed=0)
    other = pruned(pool, tmp_path / "other", ratio=5, seed=1)
    assert default.manifest.content_digest == same.manifest.content_digest
    assert list(other.keys) != list(same.keys)
    (step,) = other.header.lineage
    assert (step.operation, step.parent_digest) == ("prune", pool.manifest.content_digest)
    assert step.parameters == {
        "settings": {
            "ratio": 5,
            "budget": None,
            "level": "batch",
            "by": "random",
            "prefer": None,
            "seed": 1,
        },
        "random_seed": 1,
        "kept_batches": 12,
        "candidate_batches": COMPLETE,
    }
    again = pruned(other, tmp_path / "again", ratio=2)
    assert [s.parent_digest for s in again.header.lineage] == [
        pool.manifest.content_digest,
        other.manifest.content_digest,
    ]


@given(seed=st.integers(0, 2**40), first=st.integers(1, 12), second=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_any_two_prunings_nest(pool: PoolReader, seed: int, first: int, second: int) -> None:
    outer = plan_prune(pool, PruneSettings(ratio=first, seed=seed))
    inner = plan_prune(pool, PruneSettings(ratio=first * second, seed=seed))
    assert inner.count == outer.count // second
    assert set(inner.kept.tolist()) <= set(outer.kept.tolist())


@pytest.mark.parametrize("codec", ["f16", "int8"])
@pytest.mark.parametrize("budget", [16_000, 25_000, 40_000, 10**9])
def test_budget_is_met_and_used(tmp_path: Path, codec: str, budget: int) -> None:
    batches = [make_batch(e, b, classes=20) for e in range(20) for b in range(6)]
    parent = write_pool(tmp_path / "parent", batches, codec=codec)
    child = pruned(parent, tmp_path / "child", budget=budget)
    on_disk = sum(f.stat().st_size for f in (tmp_path / "child").rglob("*") if f.is_file())
    assert on_disk == pool_bytes(child.manifest) <= budget
    assert len(child) == 120 or budget < 10**9
    assert list(child.keys) == lowest_ranked(0, list(parent.keys), len(child))


def test_random_budgets_are_met_and_leave_less_than_a_batch(tmp_path: Path) -> None:
    outcomes = Counter(random_budget(tmp_path / str(seed), seed) for seed in range(20))
    assert outcomes["met"] > 10
    assert outcomes["too small"] > 0
    assert outcomes["wrong"] == 0


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


@pytest.mark.parametrize("codec", ["f16", "f16:plain", "int8"])
def test_budget_too_small_names_one_that_is_enough(tmp_path: Path, codec: str) -> None:
    parent = write_pool(tmp_path / "parent", with_partials(), codec=codec)
    with pytest.raises(InvalidArgumentError, match="too small for even one batch") as refusal:
        prune_pool(parent, tmp_path / "out", PruneSettings(budget=3000))
    assert not (tmp_path / "out").exists()
    smallest = int(refusal.value.expected.split()[-2])
    child = pruned(parent, tmp_path / "out", budget=smallest)
    assert len(child) >= 1
    assert pool_bytes(child.manifest) <= smallest < 2 * pool_bytes(child.manifest)


def recorded_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that fills with the keys of the batches that are read from now on."""
    keys: list[tuple[int, int]] = []
    read = PoolReader.read_encoded

    def recording(self: PoolReader, key: tuple[int, int]) -> Any:
        keys.append(key)
        return read(self, key)

    monkeypatch.setattr(PoolReader, "read_encoded", recording)
    return keys


def test_an_interrupted_prune_goes_on(
    pool: PoolReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reused: list[str]
) -> None:
    reads: list[Any] = []
    read = PoolReader.read_encoded

    def failing(self: PoolReader, key: tuple[int, int]) -> Any:
        if len(reads) == 7:
            raise KeyboardInterrupt
        reads.append(key)
        return read(self, key)

    monkeypatch.setattr(PoolReader, "read_encoded", failing)
    monkeypatch.setattr(plan_module, "SHARD_BATCHES", 3)
    with pytest.raises(KeyboardInterrupt):
        prune_pool(pool, tmp_path / "out", PruneSettings(ratio=2))
    monkeypatch.undo()
    assert not (tmp_path / "out").exists()
    with pytest.raises(StagingMismatchError, match="unfinished work for something else"):
        prune_pool(pool, tmp_path / "out", PruneSettings(ratio=2, seed=9))
    copied = recorded_reads(monkeypatch)
    resumed = prune_pool(pool, tmp_path / "out", PruneSettings(ratio=2))
    assert set(copied).isdisjoint(reads[:6]), "two shards were done"
    assert reused == [f"{tmp_path / 'out'}: resumes, 6 of {COMPLETE // 2} batches reused"]
    assert len(copied) + 6 == COMPLETE // 2
    direct = prune_pool(pool, tmp_path / "direct", PruneSettings(ratio=2))
    assert resumed.content_digest == direct.content_digest


def test_reads_go_front_to_back_and_touch_only_what_stays(
    pool: PoolReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = recorded_reads(monkeypatch)
    monkeypatch.setattr(PoolReader, "read_labels", lambda *_: pytest.fail("random pruning decoded labels"))
    child = pruned(pool, tmp_path / "out", ratio=6)
    assert sorted(keys) == list(child.keys)
    numbers = [pool.find(key) for key in keys]
    places = [(int(pool.index.shard[number]), int(pool.index.first_rows[number])) for number in numbers]
    assert all(first < second for first, second in pairwise(places))


def test_random_pruning_needs_no_torch(pool: PoolReader, tmp_path: Path) -> None:
    program = f"""
        import sys
        from lpld_labels import PoolReader
        from lpld_labels.transforms.prune import prune_pool
        from lpld_labels.transforms.settings import PruneSettings
        prune_pool(PoolReader({pool.location!r}), {str(tmp_path / "out")!r}, PruneSettings(ratio=3))
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
    assert len(PoolReader(tmp_path / "out")) == COMPLETE // 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": 0.5}, "expected a number >= 1, got 0.5"),
        ({"ratio": float("nan")}, "expected a number, got nan"),
        ({"ratio": COMPLETE + 1}, f"expected 1 to {COMPLETE}"),
        ({}, "either a ratio or a budget"),
        ({"ratio": 2, "budget": 5}, "either a ratio or a budget"),
        ({"ratio": 2, "by": "luck"}, "by is wrong"),
        ({"ratio": 2, "by": "diff"}, "prefer goes with a metric"),
        ({"ratio": 2, "prefer": "hard"}, "prefer goes with a metric"),
    ],
)
def test_bad_settings_are_refused(
    pool: PoolReader, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        prune_pool(pool, tmp_path / "out", PruneSettings(**options))
    assert not (tmp_path / "out").exists()


def test_pools_without_a_complete_batch_can_be_pruned(tmp_path: Path) -> None:
    batches = [make_batch(0, number, rows=5) for number in range(4)]
    parent = write_pool(tmp_path / "pool", batches, header=make_header(batch_size=8))
    assert plan_prune(parent, PruneSettings(ratio=2)).count == 2


@pytest.mark.parametrize("kind", ["pool", "file", "full directory"])
def test_existing_out_is_left_alone(pool: PoolReader, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "pool":
        write_pool(out, [make_batch(0, 0)])
    elif kind == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "notes.txt").write_text("mine")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(PoolConflictError, match="already here"):
        prune_pool(pool, out, PruneSettings(ratio=2))
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
