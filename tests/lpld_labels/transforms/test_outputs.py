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
from lpld_labels.exec.local import LocalExecutor
from lpld_labels.io.locks import locked_directory
from lpld_labels.pool.unfinished import partial_directory
from lpld_labels.transforms.copy import merge_pools
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.outputs import require_apart
from lpld_labels.transforms.plan import apply_plan, plan_budget
from lpld_labels.transforms.settings import EncodeSettings, PlanSettings, PruneSettings
from tests.factories import interrupt_at, make_batches, make_header, prune_pool, tree, write_pool
from tests.lpld_labels.transforms.test_encode import CLASSES, ROWS, labelled

Make = Callable[..., Any]
HALF, QUARTER = PruneSettings(ratio=2), PruneSettings(ratio=4)


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut shards of two batches, so that an interruption leaves some of them done."""
    for module in ("pool.plan", "pool.sizes"):
        monkeypatch.setattr(f"lpld_labels.{module}.SHARD_BATCHES", 2)


@pytest.fixture
def pool(tmp_path: Path) -> PoolReader:
    return write_pool(tmp_path / "pool", make_batches(2, 4))


@pytest.mark.parametrize(
    "out", ["in", "in/below", "in/below/further", ".", "../{root}", "in/../in/x", "link/x"]
)
def test_no_output_among_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match="choose a path beside the input"):
        require_apart(out.format(root=tmp_path.name), "in")
    require_apart("in2", "in", "s3://bucket/in2")


def test_a_pool_is_replaced_only_when_asked(tmp_path: Path, pool: PoolReader) -> None:
    out = tmp_path / "out"
    first = prune_pool(pool, out, HALF)
    with pytest.raises(PoolConflictError, match="--overwrite"):
        prune_pool(pool, out, QUARTER)
    with pytest.raises(InvalidArgumentError):
        encode_pool(pool, out, EncodeSettings(codec="topk:11"), overwrite=True)
    assert PoolReader(out).manifest == first
    assert prune_pool(pool, out, QUARTER, overwrite=True).counts.batches == 2
    prune_pool(pool, tmp_path / "fresh", QUARTER)
    assert tree(out) == tree(tmp_path / "fresh")
    # Files of others beside a pool are never deleted.
    file = out / "notes.txt"
    file.write_text("mine")
    with pytest.raises(PoolConflictError, match=r"notes\.txt"):
        merge_pools([pool], out, overwrite=True)
    with pytest.raises(PoolConflictError, match="not a label pool"):
        prune_pool(pool, file, HALF)
    assert file.read_text() == "mine"


def test_a_second_writer_is_refused_while_another_writes(tmp_path: Path, pool: PoolReader) -> None:
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
        with pytest.raises(
            PoolConflictError, match="another process is using this directory; wait for that process"
        ):
            prune_pool(pool, out, HALF)
        first.communicate("")
    assert not out.exists()
    assert prune_pool(pool, out, HALF).counts.batches == 4


def test_shared_locks_refuse_an_exclusive_one(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with locked_directory(out, shared=True), locked_directory(out, shared=True):
        with pytest.raises(PoolConflictError), locked_directory(out):
            pass
        (out / "made").touch()
    assert out.exists()
    with locked_directory(tmp_path / "other" / "deep"):
        pass
    assert not (tmp_path / "other").exists()


def prune(pool: PoolReader, out: Path, **how: Any) -> None:
    # Scoring reports its progress too.
    prune_pool(pool, out, PruneSettings(ratio=2, by="confidence", prefer="hard"), **how)


def halve(pool: PoolReader, out: Path, **how: Any) -> None:
    prune_pool(pool, out, HALF, **how)


def encode(pool: PoolReader, out: Path, **how: Any) -> None:
    encode_pool(pool, out, EncodeSettings(codec="klt", fidelity=0.95), **how)


def convert(pool: PoolReader, out: Path, **how: Any) -> None:
    encode_pool(pool, out, EncodeSettings(views="stored"), **how)


def plan(pool: PoolReader, out: Path, **how: Any) -> None:
    apply_plan(pool, out, plan_budget(pool, PlanSettings(budget=75_000, codecs=("klt",))), **how)


def merge(pool: PoolReader, out: Path, **how: Any) -> None:
    merge_pools([pool], out, **how)


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolReader]:
    path = tmp_path_factory.mktemp("pools") / "pool"
    with write_pool(path, labelled(12), header=make_header(CLASSES, ROWS)) as reader:
        yield reader


@pytest.mark.parametrize("make", [encode, convert, plan, merge])
def test_resumes_to_the_same_bytes(tmp_path: Path, labels: PoolReader, make: Make, reused: list[str]) -> None:
    make(labels, tmp_path / "whole")
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        make(labels, out, progress=interrupt_at(-1))
    assert not out.exists()
    done: list[int] = []
    several = {"executor": LocalExecutor(2)} if make in (encode, plan) else {}
    make(labels, out, progress=lambda count, total: done.append(count), **several)
    assert min(done) >= 2, "finished shards are not written again"
    assert done[-1] == 12
    assert reused == [f"{out}: resumes, 10 of 12 batches reused"]
    assert tree(out) == tree(tmp_path / "whole")
    assert not partial_directory(out).exists()


@pytest.mark.parametrize("make", [halve, encode, convert, plan, merge])
def test_labels_of_another_pool_are_not_mixed_in(tmp_path: Path, labels: PoolReader, make: Make) -> None:
    """Pools of the same header and images differ in their labels alone."""
    changed = [replace(batch, labels=batch.labels + np.float16(1)) for batch in labels]
    out = tmp_path / "out"
    with write_pool(tmp_path / "other", changed, header=labels.header) as other:
        with pytest.raises(KeyboardInterrupt):
            make(other, out, progress=interrupt_at(-1))
        with pytest.raises(StagingMismatchError):
            make(labels, out)
        make(other, out)
    make(labels, tmp_path / "whole")
    make(labels, out, overwrite=True)
    assert tree(out) == tree(tmp_path / "whole")


@pytest.mark.parametrize("make", [prune, encode, plan])
def test_a_replaced_pool_stays_until_the_new_is_whole(tmp_path: Path, labels: PoolReader, make: Make) -> None:
    out = tmp_path / "out"
    prune_pool(labels, out, QUARTER)
    old = tree(out)
    with pytest.raises(KeyboardInterrupt):
        make(labels, out, progress=interrupt_at(-1), overwrite=True)
    assert tree(out) == old
    make(labels, out, overwrite=True)
    make(labels, tmp_path / "whole")
    assert tree(out) == tree(tmp_path / "whole")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("make", [prune, encode, plan])
def test_finished_pool_is_left_alone(tmp_path: Path, labels: PoolReader, make: Make, overwrite: bool) -> None:
    make(labels, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    make(labels, tmp_path / "out", overwrite=overwrite)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_a_refused_command_leaves_nothing(tmp_path: Path, labels: PoolReader) -> None:
    with pytest.raises(InvalidArgumentError):
        prune_pool(labels, tmp_path / "out", PruneSettings(budget=100, by="diff", prefer="hard"))
    with pytest.raises(InvalidArgumentError):
        encode_pool(labels, tmp_path / "out", EncodeSettings(codec="klt", fidelity=0.9999999))
    plan_budget(labels, PlanSettings(budget=30_000, codecs=("klt",)))
    assert not list(tmp_path.iterdir())
