"""The one rule for outputs that are there already, and one writer at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError, PoolConflictError, StagingMismatchError
from lpld_labels.exec.job import Progress
from lpld_labels.format.digests import bytes_digest
from lpld_labels.io.locks import locked_directory
from lpld_labels.pool.unfinished import partial_directory
from lpld_labels.transforms.copy import merge_pools
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.outputs import require_apart
from lpld_labels.transforms.plan import apply_plan, plan_budget
from lpld_labels.transforms.prune import prune_pool
from lpld_labels.transforms.settings import EncodeSettings, PlanSettings, PruneSettings
from tests.factories import make_batches, make_header, write_pool
from tests.lpld_labels.transforms.test_encode import CLASSES, ROWS, labelled


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every batch a shard, so that an interruption leaves some of them done."""
    monkeypatch.setattr("lpld_labels.pool.plan.SHARD_BATCHES", 1)


@pytest.fixture
def pool(tmp_path: Path) -> PoolReader:
    return write_pool(tmp_path / "pool", make_batches(2, 4))


@pytest.mark.parametrize("out", ["in", "in/below", "in/below/further", ".", "../{root}", "in/../in/x"])
def test_no_output_among_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match="choose a path beside it"):
        require_apart(out.format(root=tmp_path.name), "in")


def test_neighbours_and_remote_inputs_are_no_matter(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    require_apart(tmp_path / "in2", tmp_path / "in", "s3://bucket/in2")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    with pytest.raises(InvalidArgumentError, match="the output is inside an input"):
        require_apart(tmp_path / "link" / "x", tmp_path / "in")


def test_a_pool_is_replaced_only_when_asked(tmp_path: Path, pool: PoolReader) -> None:
    out = tmp_path / "out"
    halved, quartered = PruneSettings(ratio=2), PruneSettings(ratio=4)
    first = prune_pool(pool, out, halved)
    with pytest.raises(PoolConflictError, match="--overwrite"):
        prune_pool(pool, out, quartered)
    assert PoolReader(out).manifest == first
    second = prune_pool(pool, out, quartered, overwrite=True)
    assert second.counts.batches == 2
    assert second.content_digest == prune_pool(pool, tmp_path / "fresh", quartered).content_digest
    assert sorted(p.name for p in out.rglob("*")) == sorted(p.name for p in (tmp_path / "fresh").rglob("*"))


def test_the_same_job_is_not_done_again(tmp_path: Path, pool: PoolReader) -> None:
    out = tmp_path / "out"
    prune_pool(pool, out, PruneSettings(ratio=2))
    before = (out / "pool.json").stat()
    prune_pool(pool, out, PruneSettings(ratio=2), overwrite=True)
    after = (out / "pool.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_unfinished_work_of_another_job_is_replaced_only_when_asked(tmp_path: Path, pool: PoolReader) -> None:
    out = tmp_path / "out"

    def stop(done: int, total: int) -> None:
        del total
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_pool(pool, out, EncodeSettings(codec="int8"), progress=stop)
    with pytest.raises(PoolConflictError):
        encode_pool(pool, out, EncodeSettings(codec="int4"))
    encode_pool(pool, out, EncodeSettings(codec="int4"), overwrite=True)
    assert PoolReader(out).codec.name == "int4"


def test_what_cannot_be_made_costs_nothing(tmp_path: Path, pool: PoolReader) -> None:
    out = tmp_path / "out"
    kept = prune_pool(pool, out, PruneSettings(ratio=2))
    with pytest.raises(InvalidArgumentError):
        encode_pool(pool, out, EncodeSettings(codec="topk:11"), overwrite=True)
    assert PoolReader(out).manifest == kept


def test_nothing_but_pools_is_ever_deleted(tmp_path: Path, pool: PoolReader) -> None:
    out = tmp_path / "out"
    prune_pool(pool, out, PruneSettings(ratio=2))
    (out / "notes.txt").write_text("mine")
    assert (out / "pool.json").exists()
    parts = [write_pool(tmp_path / f"part{n}", make_batches(2, 2)[n::2]) for n in range(2)]
    with pytest.raises(PoolConflictError, match=r"notes\.txt"):
        merge_pools(parts, out, overwrite=True)


def test_a_second_writer_is_told_who_is_at_work(tmp_path: Path, pool: PoolReader) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from lpld_labels.pool.unfinished import unfinished\n"
        "with unfinished(Path(sys.argv[1])):\n"
        "    print('writing', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    out = tmp_path / "out"
    command = [sys.executable, "-c", program, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "writing\n"
        with pytest.raises(PoolConflictError, match="another process is writing here; wait until it is done"):
            prune_pool(pool, out, PruneSettings(ratio=2))
        first.communicate("")
    assert not out.exists()
    assert prune_pool(pool, out, PruneSettings(ratio=2)).counts.batches == 4


def test_parts_of_one_job_share(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with locked_directory(out, shared=True), locked_directory(out, shared=True):
        with pytest.raises(PoolConflictError), locked_directory(out):
            pass
        (out / "made").touch()
    assert out.exists()
    with locked_directory(tmp_path / "other" / "deep"):
        pass
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("command", ["prune", "encode", "merge", "views"])
def test_labels_of_another_pool_are_never_mixed_in(tmp_path: Path, pool: PoolReader, command: str) -> None:
    """Pools of the same header and images tell apart by their labels alone."""
    batches = [replace(batch, labels=batch.labels + np.float16(1)) for batch in make_batches(2, 4)]
    other = write_pool(tmp_path / "other", batches)
    rest = write_pool(tmp_path / "rest", make_batches(3, 4)[8:])
    assert other.header == pool.header
    commands: dict[str, Callable[[PoolReader, Progress | None], object]] = {
        "prune": lambda source, progress: prune_pool(
            source, tmp_path / "out", PruneSettings(ratio=2), progress=progress
        ),
        "encode": lambda source, progress: encode_pool(
            source, tmp_path / "out", EncodeSettings(codec="f16:plain"), progress=progress
        ),
        "merge": lambda source, progress: merge_pools([source, rest], tmp_path / "out", progress=progress),
        "views": lambda source, progress: encode_pool(
            source, tmp_path / "out", EncodeSettings(views="stored"), progress=progress
        ),
    }

    def stop(done: int, total: int) -> None:
        if done >= total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        commands[command](pool, stop)
    with pytest.raises(PoolConflictError, match="unfinished work for something else"):
        commands[command](other, None)
    # Its own command goes on.
    commands[command](pool, None)
    with PoolReader(tmp_path / "out") as found:
        for key in set(found.keys) & set(pool.keys):
            assert np.array_equal(found.read_labels(key), pool.read_labels(key))


BATCHES = 12
SCORED = PruneSettings(ratio=2, by="confidence", prefer="hard")
Make = Callable[..., Any]


def prune(labels_pool: PoolReader, out: Path, progress: Progress | None = None, **how: Any) -> None:
    # Scoring reports its progress too.
    prune_pool(labels_pool, out, SCORED, progress=progress, **how)


def encode(labels_pool: PoolReader, out: Path, progress: Progress | None = None, **how: Any) -> None:
    encode_pool(labels_pool, out, EncodeSettings(codec="klt", fidelity=0.95), progress=progress, **how)


def plan(labels_pool: PoolReader, out: Path, progress: Progress | None = None, **how: Any) -> None:
    found = plan_budget(labels_pool, PlanSettings(budget=75_000, codecs=("klt",)))
    apply_plan(labels_pool, out, found, progress=progress, **how)


@pytest.fixture(scope="module")
def labels_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolReader]:
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


def _tree(out: Path) -> dict[str, str]:
    paths = sorted(path for path in out.rglob("*") if path.is_file())
    return {str(path.relative_to(out)): bytes_digest(path.read_bytes()) for path in paths}


@pytest.mark.parametrize("make", [encode, plan])
def test_the_same_command_resumes_to_the_same_bytes(
    tmp_path: Path, labels_pool: PoolReader, make: Make
) -> None:
    make(labels_pool, tmp_path / "whole")
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        make(labels_pool, out, progress=stop_late)
    assert not out.exists()
    done: list[int] = []
    make(labels_pool, out, progress=lambda count, total: done.append(count))
    assert min(done) >= 2, "shards that were finished are not written again"
    assert _tree(out) == _tree(tmp_path / "whole")
    assert not partial_directory(out).exists()


@pytest.mark.parametrize("make", [encode, plan])
def test_labels_of_another_pool_are_not_mixed_in(tmp_path: Path, labels_pool: PoolReader, make: Make) -> None:
    changed = labelled(BATCHES)
    changed[0].labels[0, 0] += 1
    with write_pool(tmp_path / "other", changed, header=make_header(CLASSES, ROWS)) as other:
        with pytest.raises(KeyboardInterrupt):
            make(other, tmp_path / "out", progress=stop_late)
        with pytest.raises(StagingMismatchError):
            make(labels_pool, tmp_path / "out")
    make(labels_pool, tmp_path / "whole")
    make(labels_pool, tmp_path / "out", overwrite=True)
    assert _tree(tmp_path / "out") == _tree(tmp_path / "whole")


@pytest.mark.parametrize("make", [prune, encode, plan])
def test_what_is_replaced_stays_until_its_successor_is_whole(
    tmp_path: Path, labels_pool: PoolReader, make: Make
) -> None:
    out = tmp_path / "out"
    prune_pool(labels_pool, out, PruneSettings(ratio=4))
    old = _tree(out)
    with pytest.raises(KeyboardInterrupt):
        make(labels_pool, out, progress=stop_late, overwrite=True)
    assert _tree(out) == old
    make(labels_pool, out, overwrite=True)
    make(labels_pool, tmp_path / "whole")
    assert _tree(out) == _tree(tmp_path / "whole")


@pytest.mark.parametrize("make", [prune, encode, plan])
def test_a_finished_pool_is_left_alone(tmp_path: Path, labels_pool: PoolReader, make: Make) -> None:
    make(labels_pool, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    make(labels_pool, tmp_path / "out")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_what_cannot_be_made_leaves_nothing(tmp_path: Path, labels_pool: PoolReader) -> None:
    with pytest.raises(InvalidArgumentError):
        prune_pool(labels_pool, tmp_path / "out", PruneSettings(budget=100, by="diff", prefer="hard"))
    with pytest.raises(InvalidArgumentError):
        encode_pool(labels_pool, tmp_path / "out", EncodeSettings(codec="klt", fidelity=0.9999999))
    plan_budget(labels_pool, PlanSettings(budget=30_000, codecs=("klt",)))
    assert not list(tmp_path.iterdir())
