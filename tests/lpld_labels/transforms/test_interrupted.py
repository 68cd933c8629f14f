"""Scoring and fitting that are interrupted: the same result, and nothing that was saved is done again."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.pool.checkpoint import Checkpoint
from lpld_labels.transforms.codec_request import CodecRequest
from lpld_labels.transforms.destinations import unfinished_at
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.plan import plan_budget
from lpld_labels.transforms.plan_apply import apply_row
from lpld_labels.transforms.prune import PruneSettings, prune_pool
from tests.factories import make_header, write_pool
from tests.lpld_labels.transforms.test_encode import CLASSES, ROWS, labelled

BATCHES = 12
COMPLETE = BATCHES - 1
SCORED = PruneSettings(ratio=2, by="confidence", prefer="hard")
Make = Callable[[PoolReader, Path], Any]


def prune(pool: PoolReader, out: Path) -> None:
    prune_pool(pool, out, SCORED)


def prune_budget(pool: PoolReader, out: Path) -> None:
    prune_pool(pool, out, PruneSettings(budget=30_000, by="diff", prefer="uniform"))


def encode(pool: PoolReader, out: Path) -> None:
    encode_pool(pool, out, CodecRequest(fidelity=0.95))


def encode_budget(pool: PoolReader, out: Path) -> None:
    encode_pool(pool, out, CodecRequest(budget=34_000))


def plan(pool: PoolReader, out: Path) -> None:
    with unfinished_at(out, pool) as keeper:
        row = plan_budget(pool, 34_000, codecs=["klt"], keeper=keeper).recommended
    apply_row(pool, out, row, budget=34_000)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolReader]:
    path = tmp_path_factory.mktemp("pools") / "pool"
    with write_pool(path, labelled(BATCHES), header=make_header(CLASSES, ROWS)) as reader:
        yield reader


class Work:
    """Counts what is done, and is interrupted when so much of it has been."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: Counter[str] = Counter()
        self.stop_at = 0
        for place, name in ((PoolReader, "read_labels"),):
            monkeypatch.setattr(place, name, self._counted(name, getattr(place, name)))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.done[name] += 1
            if self.done.total() == self.stop_at:
                raise KeyboardInterrupt
            return real(*args, **options)

        return counted

    def counted(self, make: Make, pool: PoolReader, out: Path, *, stop_at: int = 0) -> Counter[str]:
        """Run a command, to its end or to the interruption, and return what it did."""
        self.done.clear()
        self.stop_at = stop_at
        if stop_at:
            with pytest.raises(KeyboardInterrupt):
                make(pool, out)
        else:
            make(pool, out)
        return Counter(self.done)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


@pytest.fixture
def at_every_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save whatever there is; power cuts aside, which would make a hundred saves slow."""
    monkeypatch.setattr("lpld_labels.pool.pace.SAVE_SECONDS", 0.0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def tree(out: Path) -> dict[str, str]:
    paths = sorted(path for path in out.rglob("*") if path.is_file())
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.mark.usefixtures("at_every_chance")
@pytest.mark.parametrize("make", [encode])
def test_damaged_it_is_not_used(
    tmp_path: Path, pool: PoolReader, work: Work, caplog: pytest.LogCaptureFixture, make: Make
) -> None:
    whole = work.counted(make, pool, tmp_path / "whole")
    work.counted(make, pool, tmp_path / "out", stop_at=9)
    for path in (tmp_path / "out" / "staging" / "checkpoint").iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        again = work.counted(make, pool, tmp_path / "out")
    assert "damaged" in caplog.text
    assert again["read_labels"] == whole["read_labels"]
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.usefixtures("at_every_chance")
@pytest.mark.parametrize("make", [encode])
def test_labels_of_another_pool_are_not_mixed_in(
    tmp_path: Path, pool: PoolReader, work: Work, make: Make
) -> None:
    changed = labelled(BATCHES)
    changed[0].labels[0, 0] += 1
    with write_pool(tmp_path / "other", changed, header=make_header(CLASSES, ROWS)) as other:
        whole = work.counted(make, pool, tmp_path / "whole")
        work.counted(make, other, tmp_path / "out", stop_at=9)
        assert work.counted(make, pool, tmp_path / "out")["read_labels"] == whole["read_labels"]
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.usefixtures("at_every_chance")
@pytest.mark.parametrize("what", ["encode"])
def test_what_is_replaced_stays_until_its_successor_is_known(
    tmp_path: Path, pool: PoolReader, work: Work, what: str
) -> None:
    def replacing(pool: PoolReader, out: Path) -> None:
        if what == "prune":
            prune_pool(pool, out, SCORED, overwrite=True)
        else:
            encode_pool(pool, out, CodecRequest(fidelity=0.95), overwrite=True)

    whole = work.counted(replacing, pool, tmp_path / "whole")
    out = tmp_path / "out"
    prune_pool(pool, out, PruneSettings(ratio=4))
    old = (out / "pool.json").read_bytes()
    work.counted(replacing, pool, out, stop_at=6)
    assert (out / "pool.json").read_bytes() == old
    assert work.counted(replacing, pool, out)["read_labels"] == whole["read_labels"] - 5
    assert tree(out) == tree(tmp_path / "whole")


@pytest.mark.usefixtures("at_every_chance")
@pytest.mark.parametrize("make", [prune, prune_budget, encode, encode_budget, plan])
def test_a_finished_pool_gets_no_staging_area_again(tmp_path: Path, pool: PoolReader, make: Make) -> None:
    make(pool, tmp_path / "out")
    before = tree(tmp_path / "out")
    make(pool, tmp_path / "out")
    assert tree(tmp_path / "out") == before
    assert not (tmp_path / "out" / "staging").exists()


@pytest.mark.usefixtures("at_every_chance")
def test_what_cannot_be_made_leaves_nothing(tmp_path: Path, pool: PoolReader) -> None:
    for settings in (PruneSettings(budget=100, by="diff", prefer="hard"),):
        with pytest.raises(InvalidArgumentError):
            prune_pool(pool, tmp_path / "out", settings)
    for request in (
        CodecRequest(budget=5000),
        CodecRequest(fidelity=0.9999999),
    ):
        with pytest.raises(InvalidArgumentError):
            encode_pool(pool, tmp_path / "out", request)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("at_every_chance")
def test_a_look_writes_nothing(tmp_path: Path, pool: PoolReader) -> None:
    with unfinished_at(None, pool) as keeper:
        plan_budget(pool, 34_000, codecs=["klt"], keeper=keeper)
    assert not list(tmp_path.iterdir())
    assert not isinstance(keeper, Checkpoint)
