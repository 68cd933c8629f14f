"""An import resumes with its own label files only, wherever they lie by now."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lpld_labels import PoolReader
from lpld_labels.errors import LabelFileError, StagingMismatchError
from lpld_labels.exec.local import ONE_PROCESS, LocalExecutor
from lpld_labels.format.records import BatchKey
from lpld_labels.interop.importing import ImportReport, import_labels
from lpld_labels.interop.settings import ImportOptions
from tests.lpld_labels.interop.label_folders import (
    CLASSES,
    write_epochs,
    write_fkd,
    write_images,
)

pytestmark = pytest.mark.usefixtures("one_batch_shards")
VICTIM = "epoch_3/batch_2.tar"
HALVED = np.array([[[1.0], [0.5]]], np.float32)
"""Class numbers stay, probabilities become half."""


def relabel(folder: Path, change: Callable[[Any], Any], *names: str) -> Path:
    """Change the last item of some label files, or of all; their sizes stay what they are."""
    for path in [folder / name for name in names] or sorted(folder.rglob("*.tar")):
        content = torch.load(path, weights_only=False)
        size = path.stat().st_size
        content[-1] = change(content[-1])
        torch.save(content, path)
        assert path.stat().st_size == size
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images")


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """Return the labels of a teacher."""
    return write_epochs(tmp_path / "a" / "labels", epochs=4, ids_file=True)


@pytest.fixture
def second(first: Path, tmp_path: Path) -> Path:
    """Return the labels of another teacher for the same views: same names, same sizes."""
    return relabel(Path(shutil.copytree(first, tmp_path / "b" / "labels")), lambda labels: -labels)


def begin(folder: Path, pool: Path, images: Path, victim: str = VICTIM, **settings: Any) -> bytes:
    """Import a folder of which one file is damaged, as far as it goes; return the file as it should be."""
    whole = (folder / victim).read_bytes()
    os.truncate(folder / victim, 50)
    with pytest.raises(LabelFileError):
        import_labels(folder, pool, images=images, **settings)
    return whole


def labels_of(pool: Path) -> dict[BatchKey, bytes]:
    with PoolReader(pool) as reader:
        return {key: reader.read_labels(key).tobytes() for key in reader.keys}


@pytest.mark.parametrize("engine", [ONE_PROCESS, LocalExecutor(2)])
def test_labels_of_another_teacher_are_not_added(
    first: Path, second: Path, images: Path, tmp_path: Path, engine: LocalExecutor
) -> None:
    begin(first, tmp_path / "pool", images)
    words = "other labels were imported here: epoch 0 batch 0 differs from the label files"
    with pytest.raises(StagingMismatchError, match=words) as caught:
        import_labels(second, tmp_path / "pool", images=images, executor=engine)
    assert "--overwrite" in caught.value.hint
    assert not (tmp_path / "pool" / "pool.json").exists()
    import_labels(second, tmp_path / "alone", images=images)
    report = import_labels(second, tmp_path / "pool", images=images, executor=engine, overwrite=True)
    assert report.batches == 12
    assert labels_of(tmp_path / "pool") == labels_of(tmp_path / "alone")


def test_one_changed_file_is_enough(first: Path, images: Path, tmp_path: Path) -> None:
    whole = begin(first, tmp_path / "pool", images)
    (first / VICTIM).write_bytes(whole)
    relabel(first, lambda labels: labels + 1, "epoch_2/batch_1.tar")
    with pytest.raises(StagingMismatchError, match="epoch 2 batch 1 differs from"):
        import_labels(first, tmp_path / "pool", images=images)


def test_a_file_that_is_damaged_after_it_was_imported(first: Path, images: Path, tmp_path: Path) -> None:
    """Its labels are safe already."""
    whole = begin(first, tmp_path / "pool", images)
    (first / VICTIM).write_bytes(whole)
    damaged = first / "epoch_0" / "batch_1.tar"
    expected = torch.load(damaged, weights_only=False)[5].numpy().tobytes()
    os.truncate(damaged, 50)
    import_labels(first, tmp_path / "pool", images=images)
    assert labels_of(tmp_path / "pool")[BatchKey(0, 1)] == expected


@pytest.mark.parametrize("engine", [ONE_PROCESS, LocalExecutor(2)])
def test_the_folder_may_be_copied_elsewhere_and_repaired(
    first: Path, images: Path, tmp_path: Path, engine: LocalExecutor
) -> None:
    """Where the folder lies and the dates of its files do not count."""
    whole = begin(first, tmp_path / "pool", images)
    copied = Path(shutil.copytree(first, tmp_path / "elsewhere" / "labels", copy_function=shutil.copyfile))
    shutil.rmtree(first)
    (copied / VICTIM).write_bytes(whole)
    told = []
    report = import_labels(
        copied, tmp_path / "pool", images=images, executor=engine, progress=lambda done, of: told.append(done)
    )
    assert report.batches == 12
    assert min(told) > (1 if engine is ONE_PROCESS else 0)
    assert told[-1] == 12


def test_other_image_ids_are_noticed(images: Path, tmp_path: Path) -> None:
    """The same files, but images in another order."""
    folder = write_epochs(tmp_path / "labels", epochs=4)
    settings: dict[str, Any] = {"options": ImportOptions(torch_era="new")}
    whole = begin(folder, tmp_path / "pool", images, **settings)
    (folder / VICTIM).write_bytes(whole)
    with pytest.raises(StagingMismatchError, match="other labels were imported"):
        import_labels(
            folder, tmp_path / "pool", images=images, options=ImportOptions(torch_era="new", sampler_seed=7)
        )
    assert import_labels(folder, tmp_path / "pool", images=images, **settings).batches == 12


def test_batches_the_folder_does_not_have(first: Path, images: Path, tmp_path: Path) -> None:
    begin(first, tmp_path / "pool", images)
    shutil.rmtree(first / "epoch_3")
    shutil.rmtree(first / "epoch_2")
    with pytest.raises(StagingMismatchError, match="for something else is here"):
        import_labels(first, tmp_path / "pool", images=images)


@pytest.mark.parametrize("other", [False, True])
def test_files_by_image(images: Path, tmp_path: Path, other: bool) -> None:
    """FKD: a batch comes from many files, of which one may be another's."""

    def go_on() -> ImportReport:
        return import_labels(tmp_path / "labels", tmp_path / "pool", images=images, **settings)

    write_fkd(tmp_path / "labels", images)
    settings: dict[str, Any] = {"options": ImportOptions(classes=CLASSES, batch_size=8)}
    victim = "train/class04/image019.tar"
    whole = begin(tmp_path / "labels", tmp_path / "pool", images, victim, **settings)
    (tmp_path / "labels" / victim).write_bytes(whole)
    if not other:
        assert go_on().batches == 15
        return
    relabel(tmp_path / "labels", lambda pairs: pairs * HALVED, "train/class00/image003.tar")
    with pytest.raises(StagingMismatchError, match="other labels were imported here: epoch 0 batch 0"):
        go_on()


def test_the_settings_of_unfinished_work_are_replaced_too(first: Path, images: Path, tmp_path: Path) -> None:
    whole = begin(first, tmp_path / "pool", images)
    (first / VICTIM).write_bytes(whole)
    options = ImportOptions(output_size=64)
    with pytest.raises(StagingMismatchError, match="output_"):
        import_labels(first, tmp_path / "pool", images=images, options=options)
    report = import_labels(first, tmp_path / "pool", images=images, options=options, overwrite=True)
    assert report.batches == 12
