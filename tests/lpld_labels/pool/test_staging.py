"""Unfinished work: damaged, shared with other writers, left by processes that died."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from lpld_labels import PoolReader, Teacher
from lpld_labels.errors import PoolConflictError, PoolCorruptError, StagingMismatchError
from lpld_labels.inspect.check import check_pool
from lpld_labels.io.locks import in_use, locked
from lpld_labels.pool.shard import SEAL, SealedShard, load_sealed
from lpld_labels.pool.staging import StagingArea
from tests.factories import make_batch, make_batches, make_header, make_images, write_pool
from tests.lpld_labels.pool.test_writer import digest_of, open_writer


@pytest.mark.parametrize("file", ["views.parquet", "labels.parquet"])
@pytest.mark.parametrize("again", [False, True], ids=["by the same writer", "by another"])
def test_a_flipped_bit_is_not_published(tmp_path: Path, file: str, again: bool) -> None:
    path = tmp_path / "pool"
    with open_writer(path) as writer:
        writer.extend(make_batches(1, 4))
        writer.flush()
        writer.extend(make_batches(2, 4))
    (victim, *_) = sorted((path / "staging").glob(f"00000*/{file}"))
    with victim.open("r+b") as stream:
        stream.seek(100)
        (byte,) = stream.read(1)
        stream.seek(100)
        stream.write(bytes([byte ^ 1]))
    with pytest.raises(PoolCorruptError, match="run the same command again"):
        (open_writer(path) if again else writer).commit()
    assert not (path / "pool.json").exists()
    with open_writer(path) as writer:
        assert len(writer.keys) == 4, "the other shard is as good as before"
        writer.extend(make_batches(2, 4))
        assert writer.commit().content_digest == digest_of(make_batches(2, 4), tmp_path / "whole")
    assert check_pool(path).whole


def test_a_bit_that_flips_after_the_move_is_found_too(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    with open_writer(path) as writer:
        writer.extend(make_batches(1, 4))
    staging = StagingArea(path)
    (shard,) = staging.sealed()
    staging.publish(shard)
    victim = path / "labels" / f"{shard.name}.parquet"
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    with open_writer(path) as writer, pytest.raises(PoolCorruptError, match="damaged"):
        writer.commit()
    assert not victim.exists()


def test_what_is_sealed_during_a_commit_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pool"
    first, second = open_writer(path), open_writer(path)
    first.extend(make_batches(1, 4))
    sweep = StagingArea.sweep

    def interfered(self: StagingArea, published: set[str]) -> bool:
        second.append(make_batch(1, 0))
        second.flush()
        return sweep(self, published)

    monkeypatch.setattr(StagingArea, "sweep", interfered)
    assert first.commit().counts.batches == 4
    monkeypatch.undo()
    assert "commit again" in caplog.text
    expected = [*make_batches(1, 4), make_batch(1, 0)]
    assert second.commit().content_digest == digest_of(expected, tmp_path / "whole")
    assert not (path / "staging").exists()


def test_what_is_sealed_while_a_commit_looks_for_replaced_shards_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pool"
    first, second = open_writer(path), open_writer(path)
    first.extend(make_batches(1, 4))
    first.flush()
    later = iter([make_batch(1, 0)])

    def then_sealed(directory: Path) -> SealedShard:
        for batch in later:
            second.append(batch)
            second.flush()
        return load_sealed(directory)

    monkeypatch.setattr("lpld_labels.pool.staging.load_sealed", then_sealed)
    first.commit()
    monkeypatch.undo()
    expected = [*make_batches(1, 4), make_batch(1, 0)]
    assert second.commit().content_digest == digest_of(expected, tmp_path / "whole")
    assert not (path / "staging").exists()


@pytest.mark.parametrize("look", range(2))
def test_what_is_sealed_while_a_commit_looks_around_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """Between two looks at the staging area, an unfinished shard may get its name."""
    path, other = tmp_path / "pool", tmp_path / "pool" / "staging" / "shard-of-another"
    with open_writer(path) as writer:
        writer.extend(make_batches(1, 4))
    (shard,) = StagingArea(path).sealed()
    names = StagingArea._names
    looks = 0
    with writer._staging._workplace() as unfinished:
        shutil.copytree(path / "staging" / shard.name, unfinished, dirs_exist_ok=True)

        def then_sealed(self: StagingArea) -> list[str]:
            nonlocal looks
            found = names(self)
            if looks == look:
                unfinished.rename(other)
            looks += 1
            return found

        monkeypatch.setattr(StagingArea, "_names", then_sealed)
        assert not StagingArea(path).sweep({shard.name})
        assert unfinished.exists() or (other / SEAL).exists()


def test_a_shard_that_gets_its_name_while_it_is_looked_at_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "pool", tmp_path / "pool" / "staging" / "shard-of-another"
    with open_writer(path) as writer:
        writer.extend(make_batches(1, 4))
    (shard,) = StagingArea(path).sealed()
    with writer._staging._workplace() as unfinished:
        shutil.copytree(path / "staging" / shard.name, unfinished, dirs_exist_ok=True)

        def after_the_rename(file: Path) -> bool:
            unfinished.rename(other)
            return in_use(file)

        monkeypatch.setattr("lpld_labels.pool.staging.in_use", after_the_rename)
        assert not StagingArea(path).sweep({shard.name})
    assert (other / SEAL).exists()


def test_a_writer_goes_on_after_another_has_committed(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    first, second = open_writer(path), open_writer(path)
    first.extend(make_batches(1, 4))
    second.append(make_batch(1, 0))
    first.commit()
    assert not (path / "staging").exists()
    assert second.commit().counts.batches == 5
    assert check_pool(path).whole


def test_a_shard_that_is_being_written_survives_a_commit(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    with open_writer(path) as writer:
        writer.extend(make_batches(1, 4))
        dead = path / "staging" / ".tmp-dead"
        dead.mkdir()
        alive = path / "staging" / ".tmp-alive"
        alive.mkdir()
        with locked(alive / "lock"):
            writer.commit()
            assert (dead.exists(), alive.exists()) == (False, True)
            assert (path / "staging" / "plan.json").exists()
    with PoolReader(path) as pool, open_writer(path, onto=pool) as writer:
        writer.commit()
    assert not (path / "staging").exists()


def test_one_commit_at_a_time(tmp_path: Path, project: Path) -> None:
    path = tmp_path / "pool"
    script = """
        import sys
        from pathlib import Path
        from lpld_labels.io.locks import locked
        with locked(Path(sys.argv[1], "staging", "commit.lock")):
            print("held", flush=True)
            sys.stdin.read()
    """
    with open_writer(path) as writer:
        writer.extend(make_batches(1, 4))
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=project,
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"held\n"
            with pytest.raises(PoolConflictError, match="another process is committing"):
                writer.commit()
            other.communicate()
        assert writer.commit().counts.batches == 4


def test_a_pool_that_was_replaced_meanwhile_is_not_grown(tmp_path: Path) -> None:
    """Its labels are of another teacher, another seed or other images: together they would be no pool."""
    others: tuple[dict[str, Any], ...] = (
        {"header": make_header(seed=1)},
        {"header": make_header(teachers=(Teacher(name="another"),))},
        {"images": make_images(80)},
        {"codec": "f32"},
    )
    for number, other in enumerate(others):
        path = tmp_path / str(number)
        with write_pool(path, make_batches(1, 4)) as pool, open_writer(path, onto=pool) as writer:
            writer.extend(make_batches(2, 4))
            writer.flush()
            for entry in [entry for entry in path.iterdir() if entry.name != "staging"]:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            new = tmp_path / f"new{number}"
            settings: dict[str, Any] = {"header": make_header(), "images": make_images(), **other}
            write_pool(new, make_batches(1, 4), **settings).close()
            shutil.copytree(new, path, dirs_exist_ok=True)
            before = (path / "pool.json").read_bytes()
            with pytest.raises((StagingMismatchError, PoolConflictError)):
                writer.commit()
        assert (path / "pool.json").read_bytes() == before
        shutil.rmtree(path / "staging")
        assert check_pool(path).whole


def test_two_writers_that_seal_the_same_batches_agree(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    with open_writer(path) as first, open_writer(path) as second:
        for writer in (first, second):
            for batch in make_batches(1, 4):
                writer.append(batch)
            writer.flush()
    assert len(StagingArea(path).sealed()) == 1
    with open_writer(path) as writer:
        assert writer.commit().content_digest == digest_of(make_batches(1, 4), tmp_path / "whole")


def test_a_shard_that_goes_while_one_looks_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pool"
    with open_writer(path) as writer:
        writer.extend(make_batches(1, 4))
        writer.flush()
        writer.extend(make_batches(2, 4))
    names = StagingArea(path)._names()
    assert len(names) == 2
    shutil.rmtree(path / "staging" / names[0])
    monkeypatch.setattr(StagingArea, "_names", lambda self: names)
    assert [shard.name for shard in StagingArea(path).sealed()] == names[1:]
