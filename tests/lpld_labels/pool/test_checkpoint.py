"""Checkpoints: what is put comes back, for the same work only, whole or not at all."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.pool import checkpoint as checkpoints
from lpld_labels.pool.checkpoint import Checkpoint, is_all_there_is

ARRAYS = {
    "half": np.arange(6, dtype=np.float16).reshape(2, 3),
    "sum": np.array([[0.1, 2.0], [3.0, 1e-300]]),
    "count": np.array(7),
    "none": np.empty((0, 4), np.float32),
}


@pytest.fixture
def at_every_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lpld_labels.pool.pace.SAVE_SECONDS", 0.0)


def files(out: Path) -> list[Path]:
    return sorted((out / "staging" / "checkpoint").iterdir())


@pytest.mark.usefixtures("at_every_chance")
def test_what_is_put_comes_back(tmp_path: Path) -> None:
    Checkpoint.at(tmp_path, "digest").about(seed=3).put("sums", ARRAYS)
    found = Checkpoint.at(tmp_path, "digest").about(seed=3).get("sums")
    assert found is not None
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        assert found[name].flags.writeable, "sums go on in place"
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.usefixtures("at_every_chance")
def test_the_last_one_counts(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(tmp_path, "digest")
    for number in range(3):
        checkpoint.put("sums", {"count": np.array(number)})
    assert len(files(tmp_path)) == 1
    found = Checkpoint.at(tmp_path, "digest").get("sums")
    assert found is not None
    assert int(found["count"]) == 2


@pytest.mark.usefixtures("at_every_chance")
@pytest.mark.parametrize("changed", ["source", "setting", "name", "version", "numpy"])
def test_other_work_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    Checkpoint.at(tmp_path, "digest").about(seed=3).put("sums", ARRAYS)
    if changed == "version":
        monkeypatch.setattr(checkpoints, "__version__", "0.0.1")
    if changed == "numpy":
        monkeypatch.setattr(np, "__version__", "1.0")
    other = Checkpoint.at(tmp_path, "other" if changed == "source" else "digest")
    other = other.about(seed=4 if changed == "setting" else 3)
    assert other.get("scores" if changed == "name" else "sums") is None


@pytest.mark.usefixtures("at_every_chance")
def test_a_file_under_the_name_of_another_is_not_used(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(tmp_path, "digest")
    checkpoint.put("one", {"count": np.array(1)})
    one = files(tmp_path)[0]
    checkpoint.put("two", {"count": np.array(2)})
    two = next(path for path in files(tmp_path) if path != one)
    one.replace(two)
    assert Checkpoint.at(tmp_path, "digest").get("two") is None


@pytest.mark.usefixtures("at_every_chance")
def test_every_damage_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Checkpoint.at(tmp_path, "digest").put("sums", {"count": np.arange(3)})
    path = files(tmp_path)[0]
    data = path.read_bytes()
    flipped = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]
    for damaged in (*flipped, b"", data[:20], data[:-1], data + b"\0"):
        path.write_bytes(damaged)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert Checkpoint.at(tmp_path, "digest").get("sums") is None
        assert "damaged" in caplog.text
    Checkpoint.at(tmp_path, "digest").put("sums", {"count": np.arange(3)})
    assert path.read_bytes() == data


def test_nothing_is_written_before_it_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint.at(tmp_path, "digest")
    checkpoint.put("mean", {"count": np.array(1)})
    checkpoint.about(seed=1).put("sums", ARRAYS)
    assert not list(tmp_path.iterdir())
    assert checkpoint.get("mean") is not None
    monkeypatch.setattr("lpld_labels.pool.pace.SAVE_SECONDS", 0.0)
    checkpoint.put("scores", {"count": np.array(2)})
    assert len(files(tmp_path)) == 3, "everything that waited is written at once"


@pytest.mark.usefixtures("at_every_chance")
def test_closed_it_keeps_nothing_more(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(tmp_path, "digest")
    about = checkpoint.about(seed=1)
    checkpoint.close()
    about.put("sums", ARRAYS)
    assert not list(tmp_path.iterdir())


def refused(checkpoint: Checkpoint) -> None:
    with checkpoint.unless_refused():
        checkpoint.put("sums", ARRAYS)
        raise InvalidArgumentError("too small")


@pytest.mark.usefixtures("at_every_chance")
@pytest.mark.parametrize("others", [False, True])
def test_what_is_refused_leaves_nothing_of_its_own(tmp_path: Path, others: bool) -> None:
    if others:
        (tmp_path / "staging").mkdir()
        (tmp_path / "staging" / "plan.json").write_text("{}")
    with pytest.raises(InvalidArgumentError):
        refused(Checkpoint.at(tmp_path, "digest"))
    assert [path.name for path in tmp_path.rglob("*")] == (["staging", "plan.json"] if others else [])


@pytest.mark.usefixtures("at_every_chance")
def test_a_directory_with_nothing_else(tmp_path: Path) -> None:
    assert is_all_there_is(tmp_path)
    Checkpoint.at(tmp_path, "digest").put("sums", ARRAYS)
    assert is_all_there_is(tmp_path)
    (tmp_path / "staging" / "plan.json").write_text("{}")
    assert not is_all_there_is(tmp_path)


@pytest.mark.usefixtures("at_every_chance")
def test_an_interrupted_save_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint.at(tmp_path, "digest")
    checkpoint.put("sums", {"count": np.array(1)})

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.put("sums", {"count": np.array(2)})
    found = Checkpoint.at(tmp_path, "digest").get("sums")
    assert found is not None
    assert int(found["count"]) == 1
