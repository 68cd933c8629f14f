import json
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader import label_loader
from lpld_labels.loader.schedule import (
    SAMPLINGS,
    WHOLE_EPOCHS,
    Position,
    Processes,
    Schedule,
    current_processes,
)
from tests.factories import make_batch, write_pool

TABLE = json.loads(Path(__file__).with_name("golden_order.json").read_text())
"""A run that was saved by one version resumes with another, so this table must not change."""
STORED = {0: (0, 1, 2, 3, 4), 1: (1, 3), 3: (2,), 4: (0, 1, 2, 4)}
"""Stored epoch -> its batches: two epochs were pruned to pieces, one is gone."""
EPOCHS = np.array([epoch for epoch, numbers in STORED.items() for _ in numbers], np.int32)


def schedule(sampling: str, *, seed: int = 0, length: int = 5) -> Schedule:
    rows = np.full(len(EPOCHS), 8)
    return Schedule(
        sampling=sampling, seed=seed, epochs=EPOCHS, rows=rows, batches_per_epoch=length, fresh_rows=rows
    )


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> PoolReader:
    batches = [make_batch(epoch, batch) for epoch, numbers in STORED.items() for batch in numbers]
    return write_pool(tmp_path_factory.mktemp("pools") / "pool", batches)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_sampling_keeps_its_order(pool: PoolReader, sampling: str) -> None:
    assert set(TABLE) == set(SAMPLINGS)
    for seed, epochs in TABLE[sampling].items():
        loader = label_loader(pool, sampling=sampling, seed=int(seed), batches_per_epoch=5)
        for expected in epochs:
            assert len(loader) == len(expected)
            assert [list(batch.key) for batch in loader] == expected


@given(
    sampling=st.sampled_from(SAMPLINGS),
    seed=st.integers(0, 2**32),
    epoch=st.integers(0, 500),
    length=st.integers(1, 40),
)
def test_order_depends_on_seed_and_epoch(sampling: str, seed: int, epoch: int, length: int) -> None:
    first, second = (schedule(sampling, seed=seed, length=length) for _ in range(2))
    first.places(epoch + 1)
    places = first.places(epoch)
    np.testing.assert_array_equal(places, second.places(epoch))
    assert 0 <= places.min() <= places.max() < len(EPOCHS)
    if sampling in ("batches", "shuffled", "stored"):
        assert len(places) == length


def test_batches_are_drawn_from_the_whole_pool_with_replacement() -> None:
    found = schedule("batches")
    drawn = [found.places(epoch) for epoch in range(2000)]
    share = np.bincount(np.concatenate(drawn), minlength=len(EPOCHS)) / (2000 * 5)
    np.testing.assert_allclose(share, 1 / len(EPOCHS), atol=0.015)
    assert any(len(set(places.tolist())) < 5 for places in drawn)
    assert any(len(set(EPOCHS[places].tolist())) > 2 for places in drawn)


def test_epochs_are_drawn_whole_with_replacement() -> None:
    found = schedule("epochs", length=99)
    drawn = [found.places(epoch) for epoch in range(1000)]
    for places in drawn:
        np.testing.assert_array_equal(places, np.flatnonzero(EPOCHS[places[0]] == EPOCHS))
    counts = Counter(int(EPOCHS[places[0]]) for places in drawn)
    assert set(counts) == set(STORED)
    assert min(counts.values()) > 180


@pytest.mark.parametrize("length", [1, 5, 12, 31])
def test_shuffled_uses_every_batch_once_before_any_comes_again(length: int) -> None:
    found = schedule("shuffled", length=length)
    stream = np.concatenate([found.places(epoch) for epoch in range(60)])
    passes = stream[: len(stream) // 12 * 12].reshape(-1, 12)
    np.testing.assert_array_equal(np.sort(passes, axis=1), np.tile(np.arange(12), (len(passes), 1)))
    assert any((first != second).any() for first, second in pairwise(passes))


def test_stored_orders_go_through_the_survivors_in_key_order() -> None:
    found = schedule("stored")
    stream = np.concatenate([found.places(epoch) for epoch in range(12)])
    np.testing.assert_array_equal(stream, np.tile(np.arange(12), 5))
    by_epoch = schedule("epoch-by-epoch")
    seen = [EPOCHS[by_epoch.places(epoch)].tolist() for epoch in range(8)]
    assert seen == [[epoch] * len(numbers) for epoch, numbers in STORED.items()] * 2


def test_an_epoch_is_a_pass_over_the_images() -> None:
    """The table of docs/howto/trainers.md, on a pool of 60 epochs of 3 label batches."""
    pool: dict[str, Any] = {"epochs": np.repeat(np.arange(60), 3), "rows": np.full(180, 8)}
    pool["fresh_rows"] = np.full(3, 8)
    found: dict[str, list[list[int]]] = {}
    for name in SAMPLINGS:
        plan = Schedule(sampling=name, seed=0, batches_per_epoch=3, **pool)
        found[name] = [plan.places(epoch).tolist() for epoch in range(61)]
        assert {len(places) for places in found[name]} == {3}
    assert found["stored"][:2] == found["epoch-by-epoch"][:2] == [[0, 1, 2], [3, 4, 5]]
    assert found["stored"][60] == [0, 1, 2]
    assert sorted(place for places in found["shuffled"][:60] for place in places) == list(range(180))
    assert all(places == list(range(places[0], places[0] + 3)) for places in found["epochs"])
    drawn = Schedule(sampling="batches", seed=0, batches_per_epoch=180, **pool)
    shares = [len(set(drawn.places(epoch).tolist())) / 180 for epoch in range(100)]
    assert 0.62 < np.mean(shares) < 0.645
    whole = Schedule(sampling="stored", seed=0, batches_per_epoch=180, **pool)
    assert whole.places(1).tolist() == list(range(180))


def test_bad_arguments_are_refused(pool: PoolReader) -> None:
    with pytest.raises(InvalidArgumentError, match="unknown sampling"):
        schedule("luck")
    with pytest.raises(InvalidArgumentError, match="number of batches in an epoch is out of range"):
        schedule("batches", length=0)
    with pytest.raises(InvalidArgumentError, match="epoch is out of range"):
        schedule("batches").places(-1)
    none = EPOCHS[:0]
    with pytest.raises(InvalidArgumentError, match="contains no batches"):
        Schedule(sampling="batches", seed=0, epochs=none, rows=none, batches_per_epoch=1, fresh_rows=none)
    with pytest.raises(InvalidArgumentError, match=r"different numbers of batches.*got 1 to 5 batches"):
        label_loader(pool, sampling="epochs", equal_epochs=True)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_equal_epochs_leave_out_batches_that_lack_rows(tmp_path: Path, sampling: str) -> None:
    batches = [make_batch(epoch, batch, rows=(8, 8, 5)[batch]) for epoch in range(3) for batch in range(3)]
    pool = write_pool(tmp_path / "pool", batches)
    loader = label_loader(pool, sampling=sampling, batches_per_epoch=4, equal_epochs=True)
    for _ in range(4):
        assert [batch.views.rows for batch in loader] == [8] * (2 if sampling in WHOLE_EPOCHS else 4)
    with pytest.raises(InvalidArgumentError, match="field 'equal_epochs' differs"):
        label_loader(pool, sampling=sampling, batches_per_epoch=4).load_state_dict(loader.state_dict())


@dataclass(frozen=True, kw_only=True, eq=False)
class Fixed(Schedule):
    order: list[int]

    def places(self, epoch: int) -> Any:
        return np.array(self.order)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    world=st.integers(1, 5),
    batch=st.integers(1, 12),
    drop_last=st.booleans(),
    data=st.data(),
)
def test_processes_together_are_one_process_with_the_global_batch(
    sizes: list[int], world: int, batch: int, drop_last: bool, data: st.DataObject
) -> None:
    # The same label batch may come twice in a row.
    places = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=12))
    rows = [(place, row) for place in places for row in range(sizes[place])]
    pool: dict[str, Any] = {"epochs": np.zeros(len(sizes)), "rows": np.array(sizes), "order": places}
    pool["fresh_rows"] = np.ones(1, np.int64)
    epoch = Fixed(sampling="stored", seed=0, batches_per_epoch=1, batch=batch, drop_last=drop_last, **pool)
    total = len(rows)
    done = data.draw(st.integers(0, total))
    position = Position(4, done, 3)
    if total < world:
        with pytest.raises(InvalidArgumentError, match="too short"):
            list(epoch.steps(position, Processes(0, world)))
        return
    played = []
    for rank in range(world):
        steps = list(epoch.steps(position, Processes(rank, world)))
        runs = list(epoch.runs(position, Processes(rank, world)))
        own = [(place, row) for place, parts in runs for start, stop in parts for row in range(start, stop)]
        assert len(own) == sum(step.units for step in steps)
        ends_of = np.cumsum([step.units for step in steps]).tolist()
        played.append([own[end - step.units : end] for step, end in zip(steps, ends_of, strict=True)])
        assert [step.before.done for step in steps[1:]] == [step.after.done for step in steps[:-1]]
        assert [step.before.steps for step in steps] == list(range(3, 3 + len(steps)))
        assert all(step.is_last == (step is steps[-1]) for step in steps)
    assert len({len(steps) for steps in played}) == 1
    together = [[row for part in step for row in part] for step in zip(*played, strict=True)]
    alone = [rows[first : first + batch * world] for first in range(done, total, batch * world)]
    full = [step for step in alone if len(step) == batch * world]
    assert together[: len(full)] == full
    for last in alone[len(full) :]:
        left = last[: len(last) // world * world]
        assert together[len(full) :] == ([left] if left and not drop_last else [])


@pytest.mark.parametrize(
    ("environment", "agrees"),
    [
        ({}, True),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, True),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, False),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, False),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "0", "NODE_RANK": "0"}, False),
        ({"LOCAL_RANK": "1"}, False),
        ({"RANK": "3"}, False),
    ],
)
def test_a_launcher_that_disagrees_is_noticed(
    pool: PoolReader, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], agrees: bool
) -> None:
    loader = label_loader(pool)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if agrees:
        assert current_processes() == Processes(0, 1)
        return
    message = r"launcher's environment.*disagree.*init_process_group.*or give rank and world_size"
    with pytest.raises(InvalidArgumentError, match=message):
        next(iter(loader))
    with pytest.raises(InvalidArgumentError, match=message):
        len(loader)
    assert next(iter(label_loader(pool, rank=0, world_size=1))).views.rows == 8
