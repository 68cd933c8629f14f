"""What a commit costs whoever drives a large job: memory per batch, and bytes that are read again."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from lpld_labels.errors import PoolCorruptError
from lpld_labels.format.digests import file_digest
from lpld_labels.pool import commit, merge, staging, writer
from tests.factories import make_batch, make_images
from tests.lpld_labels.pool.test_writer import open_writer

BATCHES_PER_SHARD = 64


def stage(path: Path, batches: int) -> None:
    """Seal very small batches, some dozens in a shard."""
    images = make_images()
    with open_writer(path) as sealing:
        for number in range(batches):
            sealing.append(make_batch(number // 100, number % 100, rows=1, images=images))


def commit_peak(path: Path) -> int:
    """Return the most bytes of Python's memory that opening and committing took."""
    tracemalloc.start()
    try:
        open_writer(path).commit()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_grows_by_little_with_every_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are merged some at a time: as Python objects, one of them takes kilobytes."""
    for module in (writer, merge):
        monkeypatch.setattr(module, "SHARD_BATCHES", BATCHES_PER_SHARD)
    # As many files are read at once whatever the number of batches.
    monkeypatch.setattr(commit, "CHECKS_AT_ONCE", 1)
    few, many = 4 * BATCHES_PER_SHARD, 20 * BATCHES_PER_SHARD
    peaks: list[int] = []
    for count in (few, few, many):
        path = tmp_path / f"pool{len(peaks)}"
        stage(path, count)
        peaks.append(commit_peak(path))
    # The first has all that is imported on the way.
    assert (peaks[2] - peaks[1]) / (many - few) < 1000


def test_a_writer_seals_when_it_has_many_batches_in_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SHARD_BATCHES", 10)
    with open_writer(tmp_path / "pool", seal_seconds=1000) as sealing:
        for number in range(25):
            sealing.append(make_batch(0, number))
        assert sorted(len(shard.keys) for shard in staging.StagingArea(sealing.path).sealed()) == [10, 10]


@pytest.mark.parametrize("touched", [False, True], ids=["untouched", "touched"])
@pytest.mark.parametrize("told", [False, True], ids=["without receipts", "with receipts"])
def test_shards_of_our_own_workers_are_read_again_only_if_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool, touched: bool
) -> None:
    path = tmp_path / "pool"
    worker = open_writer(path)
    committing = open_writer(path)
    for number in range(2):
        worker.append(make_batch(0, number))
        worker.flush()
        receipts = worker.receipts()
        assert len(receipts) == 1, "each is given once"
        if told:
            committing.believe([receipts])
    read: list[Path] = []

    def noted(file: Path) -> str:
        read.append(file)
        return file_digest(file)

    monkeypatch.setattr(staging, "file_digest", noted)
    if touched:
        victim = min((path / "staging").glob("0*/labels.parquet"))
        data = bytearray(victim.read_bytes())
        data[100] ^= 1
        victim.write_bytes(data)
        with pytest.raises(PoolCorruptError, match="damaged"):
            committing.commit()
        assert not (path / "pool.json").exists()
        return
    assert committing.commit().counts.batches == 2
    assert len(read) == (0 if told else 4)
