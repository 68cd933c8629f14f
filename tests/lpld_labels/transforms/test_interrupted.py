"""Commands that are interrupted or refused: what they replace stays, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError, StagingMismatchError
from lpld_labels.exec.job import Progress
from lpld_labels.format.digests import bytes_digest
from lpld_labels.pool.unfinished import partial_directory
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.plan import apply_plan, plan_budget
from lpld_labels.transforms.prune import prune_pool
from lpld_labels.transforms.settings import EncodeSettings, PlanSettings, PruneSettings
from tests.factories import make_header, write_pool
from tests.lpld_labels.transforms.test_encode import CLASSES, ROWS, labelled

BATCHES = 12
SCORED = PruneSettings(ratio=2, by="confidence", prefer="hard")
Make = Callable[..., Any]


def prune(pool: PoolReader, out: Path, progress: Progress | None = None, **how: Any) -> None:
    # Scoring reports its progress too.
    prune_pool(pool, out, SCORED, progress=progress, **how)


def encode(pool: PoolReader, out: Path, progress: Progress | None = None, **how: Any) -> None:
    encode_pool(pool, out, EncodeSettings(codec="klt", fidelity=0.95), progress=progress, **how)


def plan(pool: PoolReader, out: Path, progress: Progress | None = None, **how: Any) -> None:
    found = plan_budget(pool, PlanSettings(budget=75_000, codecs=("klt",)))
    apply_plan(pool, out, found, progress=progress, **how)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolReader]:
    path = tmp_path_factory.mktemp("pools") / "pool"
    with write_pool(path, labelled(BATCHES), header=make_header(CLASSES, ROWS)) as reader:
        yield reader


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pool.plan", "pool.sizes"):
        monkeypatch.setattr(f"lpld_labels.{module}.SHARD_BATCHES", 2)


def stop_late(done: int, total: int) -> None:
    if done == total - 1:
        raise KeyboardInterrupt


def tree(out: Path) -> dict[str, str]:
    paths = sorted(path for path in out.rglob("*") if path.is_file())
    return {str(path.relative_to(out)): bytes_digest(path.read_bytes()) for path in paths}


@pytest.mark.parametrize("make", [encode, plan])
def test_the_same_command_resumes_to_the_same_bytes(tmp_path: Path, pool: PoolReader, make: Make) -> None:
    make(pool, tmp_path / "whole")
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        make(pool, out, progress=stop_late)
    assert not out.exists()
    done: list[int] = []
    make(pool, out, progress=lambda count, total: done.append(count))
    assert min(done) >= 2, "shards that were finished are not written again"
    assert tree(out) == tree(tmp_path / "whole")
    assert not partial_directory(out).exists()


@pytest.mark.parametrize("make", [encode, plan])
def test_labels_of_another_pool_are_not_mixed_in(tmp_path: Path, pool: PoolReader, make: Make) -> None:
    changed = labelled(BATCHES)
    changed[0].labels[0, 0] += 1
    with write_pool(tmp_path / "other", changed, header=make_header(CLASSES, ROWS)) as other:
        with pytest.raises(KeyboardInterrupt):
            make(other, tmp_path / "out", progress=stop_late)
        with pytest.raises(StagingMismatchError):
            make(pool, tmp_path / "out")
    make(pool, tmp_path / "whole")
    make(pool, tmp_path / "out", overwrite=True)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.parametrize("make", [prune, encode, plan])
def test_what_is_replaced_stays_until_its_successor_is_whole(
    tmp_path: Path, pool: PoolReader, make: Make
) -> None:
    out = tmp_path / "out"
    prune_pool(pool, out, PruneSettings(ratio=4))
    old = tree(out)
    with pytest.raises(KeyboardInterrupt):
        make(pool, out, progress=stop_late, overwrite=True)
    assert tree(out) == old
    make(pool, out, overwrite=True)
    make(pool, tmp_path / "whole")
    assert tree(out) == tree(tmp_path / "whole")


@pytest.mark.parametrize("make", [prune, encode, plan])
def test_a_finished_pool_is_left_alone(tmp_path: Path, pool: PoolReader, make: Make) -> None:
    make(pool, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    make(pool, tmp_path / "out")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_what_cannot_be_made_leaves_nothing(tmp_path: Path, pool: PoolReader) -> None:
    with pytest.raises(InvalidArgumentError):
        prune_pool(pool, tmp_path / "out", PruneSettings(budget=100, by="diff", prefer="hard"))
    with pytest.raises(InvalidArgumentError):
        encode_pool(pool, tmp_path / "out", EncodeSettings(codec="klt", fidelity=0.9999999))
    plan_budget(pool, PlanSettings(budget=30_000, codecs=("klt",)))
    assert not list(tmp_path.iterdir())
