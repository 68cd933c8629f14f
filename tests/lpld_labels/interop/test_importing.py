import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lpld_labels import PoolReader
from lpld_labels.errors import (
    ImageMismatchError,
    InvalidArgumentError,
    InvalidBatchError,
    LabelFileError,
    LabelPoolError,
    LabelSourceError,
    PoolConflictError,
    StagingMismatchError,
    UnsafePickleError,
)
from lpld_labels.exec.local import ONE_PROCESS, LocalExecutor
from lpld_labels.format.records import BatchKey
from lpld_labels.interop.import_batches import epoch_sizes
from lpld_labels.interop.import_target import Request
from lpld_labels.interop.importing import ImportReport, import_labels
from lpld_labels.interop.layouts import SRE2L, list_label_folder
from lpld_labels.interop.settings import ImportOptions
from tests.factories import interrupt_at, run_python
from tests.lpld_labels.interop.label_folders import CLASSES, write_epochs, write_fkd, write_images
from tests.trust.children import watched

VICTIM = "epoch_1/batch_1.tar"
Load = Callable[..., ImportReport]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    write_images(root / "images")
    write_epochs(root / "labels", ids_file=True)
    return root


@pytest.fixture(scope="module")
def digest(made: Path) -> str:
    """Return the content digest of an import that nothing disturbed, `made / "whole"`."""
    return import_labels(made / "labels", made / "whole", images=made / "images").content_digest


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "labels", tmp_path / "labels"))


@pytest.fixture
def load(made: Path, folder: Path, tmp_path: Path) -> Load:
    def imported(labels: Path = folder, images: Path | None = None, **settings: Any) -> ImportReport:
        return import_labels(labels, tmp_path / "pool", images=images or made / "images", **settings)

    return imported


def labels_of(pool: Path) -> dict[BatchKey, bytes]:
    with PoolReader(pool) as reader:
        return {key: reader.read_labels(key).tobytes() for key in reader.keys}


class Flag:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def changed(path: Path, place: int, item: Any) -> None:
    content = torch.load(path, weights_only=False)
    content[place] = item(content[place]) if callable(item) else item
    torch.save(content, path)


def not_finite(labels: torch.Tensor) -> torch.Tensor:
    labels[3, 4] = float("nan")
    return labels


def flip_bit(path: Path) -> None:
    labels = torch.load(path, weights_only=False)[5].numpy().tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(labels) + 7] ^= 4
    path.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], type[LabelPoolError], str]] = {
    "truncated": (lambda p: os.truncate(p, p.stat().st_size // 2), LabelFileError, "not a complete"),
    "missing": (lambda p: p.unlink(), LabelSourceError, "1 of 9 label files are missing"),
    "hostile": (lambda p: torch.save([1, Flag(p.with_name("trace"))], p), UnsafePickleError, "posix.mkdir"),
    "flipped bit": (flip_bit, LabelFileError, "CRC-32"),
    "another object": (lambda p: torch.save({"state": 1}, p), UnsafePickleError, "EMPTY_DICT"),
    "a tensor": (lambda p: torch.save(torch.zeros(3), p), LabelFileError, "not a label batch"),
    "NaN": (lambda p: changed(p, 5, not_finite), InvalidBatchError, "class 4"),
    "fewer classes": (lambda p: changed(p, 5, lambda t: t[:, :7]), LabelFileError, "number of label columns"),
    "other type": (lambda p: changed(p, 5, lambda t: t.float()), LabelFileError, "type of labels"),
    "other mix": (lambda p: changed(p, 4, None), LabelFileError, "mixing"),
    "box": (lambda p: changed(p, 4, [5, 5, 2, 9]), LabelFileError, r"\[4\] box"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_and_can_be_skipped(folder: Path, load: Load, tmp_path: Path, name: str) -> None:
    spoil, error, message = DAMAGE[name]
    spoil(folder / VICTIM)
    with pytest.raises(error, match=message) as caught:
        load()
    assert VICTIM in str(caught.value) or "epoch 1 batch 1" in str(caught.value)
    assert not (tmp_path / "pool" / "pool.json").exists()
    assert not (folder / "epoch_1" / "trace").exists()
    report = load(skip_bad=True)
    assert [hole["file"] for hole in report.holes] == [VICTIM]
    with PoolReader(tmp_path / "pool") as pool:
        assert len(pool) == 8
        assert (1, 1) not in pool
        assert [hole["file"] for hole in pool.header.lineage[-1].parameters["holes"]] == [VICTIM]
        whole = torch.load(folder / "epoch_2" / "batch_2.tar", weights_only=False)
        assert pool.read_labels((2, 2)).tobytes() == whole[5].numpy().tobytes()


@pytest.mark.usefixtures("one_batch_shards")
@pytest.mark.parametrize("stopped_by", ["damage", "an interrupt", "nothing"])
def test_skipped_files_are_read_once_repaired(made: Path, folder: Path, load: Load, stopped_by: str) -> None:
    os.truncate(folder / VICTIM, 10)
    if stopped_by == "damage":
        with pytest.raises(LabelFileError):
            load()
    elif stopped_by == "an interrupt":
        with pytest.raises(KeyboardInterrupt):
            load(skip_bad=True, progress=interrupt_at(8))
        with pytest.raises(LabelFileError, match=VICTIM):
            load()
    else:
        assert len(load(skip_bad=True).holes) == 1
    shutil.copy(made / "labels" / VICTIM, folder / VICTIM)
    if stopped_by == "nothing":
        with pytest.raises(StagingMismatchError, match="files were skipped"):
            load()
    report = load(overwrite=stopped_by == "nothing")
    assert (report.batches, report.holes) == (9, ())


def test_many_missing_files(folder: Path, load: Load) -> None:
    shutil.rmtree(folder / "epoch_1")
    with pytest.raises(LabelSourceError, match=r"epoch_1/batch_0.tar: 3 of 9 label files are missing"):
        load()
    report = load(skip_bad=True)
    assert [hole["file"] for hole in report.holes] == [f"epoch_1/batch_{batch}.tar" for batch in range(3)]
    (folder / "sampler_indices_epoch.json").unlink()
    with pytest.raises(LabelSourceError, match=r"epoch_1/batch_0.tar: 3 of 9 label files are missing"):
        load(options=ImportOptions(torch_era="new"), overwrite=True)


def test_folders_that_are_odd_as_a_whole(folder: Path, load: Load, tmp_path: Path) -> None:
    shutil.copy(folder / VICTIM, folder / "epoch_1" / "batch_3.tar")
    with pytest.raises(LabelSourceError, match="beyond the end of their epoch"):
        load()
    (folder / "epoch_1" / "batch_3.tar").unlink()
    whole = torch.load(folder / VICTIM, weights_only=False)
    short = [whole[0][:5], whole[1][:5], torch.arange(5), *whole[3:5], whole[5][:5]]
    torch.save(short, folder / VICTIM)
    with pytest.raises(LabelFileError, match=r"number of rows differs.*8, got 5\).*last batch of an epoch"):
        load()
    shutil.rmtree(folder / "epoch_2")
    torch.save(whole, folder / VICTIM)
    report = load(overwrite=True)
    assert report.batches == 6
    assert any("1 epochs that have no labels" in line for line in report.odd)
    for file in folder.rglob("*.tar"):
        os.truncate(file, 5)
    with pytest.raises(LabelFileError, match=r"epoch_0/batch_0\.tar"):
        load(skip_bad=True, overwrite=True)


@pytest.mark.parametrize("twice", [False, True])
def test_an_image_that_comes_twice_is_odd(folder: Path, load: Load, twice: bool) -> None:
    stored = json.loads((folder / "sampler_indices_epoch.json").read_text())
    if twice:
        stored["0"][0] = stored["0"][1]
    (folder / "sampler_indices_epoch.json").write_text(json.dumps(stored))
    said = "an image occurs more than once in 1 of 3 epochs, the first 0, as in epochs of a pruned pool"
    assert (said in load().odd) == twice


@pytest.mark.parametrize("count", [12, 19, 21, 28])
def test_another_number_of_images(load: Load, tmp_path: Path, count: int) -> None:
    images = write_images(tmp_path / "images", count)
    if count == 21:  # a program may have dropped the rest of a batch
        load(images=images)
        return
    with pytest.raises(ImageMismatchError, match=r"(labels refer to image|differ in their number of images)"):
        load(images=images)
    if count > 20:
        assert load(images=images, options=ImportOptions(allow_extra_images=True)).images == count


def test_images_and_settings_that_do_not_fit_the_labels(load: Load, tmp_path: Path) -> None:
    large = write_images(tmp_path / "large", size=40)
    with pytest.raises(ImageMismatchError, match=r"epoch_0/batch_0\.tar: crop of slot"):
        load(images=large, skip_bad=True)
    classes = write_images(tmp_path / "classes", 25, per_class=1)
    with pytest.raises(
        LabelPoolError, match=r"more classes than the labels|differ in their number of images"
    ):
        load(images=classes)
    with pytest.raises(LabelSourceError, match=r"more classes than the labels.*at most 20.*got 25"):
        load(images=classes, options=ImportOptions(allow_extra_images=True))
    with pytest.raises(LabelSourceError, match=r"differs from --classes \(expected 1000, got 20\)"):
        load(options=ImportOptions(classes=1000))
    with pytest.raises(LabelSourceError, match="--output-size"):
        load(options=ImportOptions(output_size=24), skip_bad=True)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ('{"0": [1, 2], "1": "x"}', "damaged"),
        ('{"0": [1]}', "epoch 1"),
        (json.dumps({epoch: list(range(1, 21)) for epoch in "012"}), "labels refer to image 20"),
    ],
)
def test_damaged_ids(folder: Path, load: Load, ids: str, message: str) -> None:
    (folder / "sampler_indices_epoch.json").write_text(ids)
    with pytest.raises((LabelSourceError, ImageMismatchError), match=message):
        load()


def test_a_lone_far_epoch_is_not_planned(tmp_path: Path) -> None:
    for epoch in (0, 999_999_999):
        (tmp_path / f"epoch_{epoch}").mkdir()
        (tmp_path / f"epoch_{epoch}" / "batch_0.tar").touch()
    nothing: Any = None  # refused before it is used
    folder = list_label_folder(tmp_path)
    request = Request(layout=SRE2L, folder=folder, images=nothing, options=ImportOptions())
    found = watched(lambda: epoch_sizes(request, nothing) and None, megabytes=64, seconds=10.0)
    assert found.kind == "refused"
    assert "epoch 999999999 is far beyond the 2 epochs" in found.said


@pytest.fixture
def fkd(made: Path, tmp_path: Path) -> Path:
    write_fkd(tmp_path / "fkd", made / "images")
    return tmp_path / "fkd"


FKD_DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda p: os.truncate(p, 100),
    "fewer crops": lambda p: torch.save([item[:2] for item in torch.load(p, weights_only=False)], p),
    "a class twice": lambda p: changed(p, 2, lambda t: np.repeat(t[:, :, :1], t.shape[2], axis=2)),
}


@pytest.mark.parametrize("damage", FKD_DAMAGE)
@pytest.mark.parametrize("bad", ["train/class00/image000.tar", "train/class01/image005.tar"])
def test_bad_files_of_fkd(fkd: Path, load: Load, tmp_path: Path, bad: str, damage: str) -> None:
    FKD_DAMAGE[damage](fkd / bad)
    options = ImportOptions(classes=CLASSES, batch_size=8)
    with pytest.raises(LabelFileError, match=Path(bad).name):
        load(fkd, options=options)
    report = load(fkd, options=options, skip_bad=True)
    assert [hole["file"] for hole in report.holes] == [bad]
    assert report.rows == 5 * 19
    with PoolReader(tmp_path / "pool") as pool:
        left = np.concatenate([pool.read_views(key).images for key in pool.keys])
    assert int(bad[-7:-4]) not in left


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("image005.png", None, "labels for 1 images"),
        ("image005.png", "new.png", "have no labels"),
        # FKD's program cuts names at the first dot, so one label file overwrote the other.
        ("image006.png", "image005.2.png", r"two images share a label file.*image005\.2\.png"),
    ],
)
def test_fkd_images(fkd: Path, load: Load, tmp_path: Path, old: str, new: str | None, message: str) -> None:
    images = write_images(tmp_path / "images")
    if new is None:
        (images / "class01" / old).unlink()
    else:
        shutil.copy(images / "class01" / old, images / "class01" / new)
    options = ImportOptions(classes=CLASSES, allow_extra_images=bool(new and "2" in new))
    with pytest.raises(ImageMismatchError, match=message):
        load(fkd, images, options=options)


COORDS, FLIPS = np.zeros((5, 4), np.float32), np.zeros(5, bool)


@pytest.mark.parametrize(
    "content",
    [
        [COORDS, FLIPS],
        [COORDS, FLIPS, np.zeros((5, 3), np.float32)],
        [COORDS[:4], FLIPS, np.zeros((5, 2, 3), np.float32)],
        [COORDS, FLIPS, np.full((5, 2, 3), 1.5, np.float32)],
        [COORDS * np.nan, FLIPS, np.ones((5, 2, 3), np.float32)],
        [COORDS[:4], FLIPS[:4], np.ones((4, 2, 3), np.float32)],
        [COORDS, FLIPS, np.ones((5, 2, 4), np.float32)],
    ],
)
def test_fkd_files_of_the_wrong_form(fkd: Path, load: Load, content: list[Any]) -> None:
    torch.save(content, fkd / "train" / "class04" / "image019.tar")
    with pytest.raises(LabelFileError, match=r"image019\.tar"):
        load(fkd, options=ImportOptions(classes=CLASSES))


def test_batches_that_no_reader_decodes_are_refused(fkd: Path, load: Load, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="field 'batch_size' is wrong"):
        load(fkd, options=ImportOptions(classes=1 << 20, batch_size=64))
    assert not (tmp_path / "pool").exists()


@pytest.mark.usefixtures("one_batch_shards")
@pytest.mark.parametrize("after", [1, 8])
def test_interrupted_and_resumed(load: Load, digest: str, tmp_path: Path, after: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        load(progress=interrupt_at(after))
    assert not (tmp_path / "pool").exists()
    told: list[int] = []
    assert load(progress=lambda done, total: told.append(done)).content_digest == digest
    assert min(told) >= after
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labels", "pool"]


DISK_FULL = """
import resource, sys
from lpld_labels.errors import PoolWriteError
from lpld_labels.interop.importing import import_labels
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
labels, images, out = sys.argv[1:]
try:
    import_labels(labels, out, images=images)
except PoolWriteError as error:
    sys.exit(0 if "disk is full" in str(error) else f"other message: {error}")
sys.exit("no error")
"""


def test_a_full_disk_is_named_and_the_import_resumes(
    made: Path, load: Load, digest: str, tmp_path: Path
) -> None:
    """A limit on file size stands for a full disk."""
    done = run_python(DISK_FULL, made / "labels", made / "images", tmp_path / "pool", check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "pool" / "pool.json").exists()
    assert load().content_digest == digest


def test_a_finished_import_is_not_replaced(made: Path, digest: str, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (made / "whole").rglob("*")}
    again = import_labels(made / "labels", made / "whole", images=made / "images")
    assert again.content_digest == digest
    write_epochs(tmp_path / "labels", epochs=7, ids_file=True)
    with pytest.raises(PoolConflictError, match="already here"):
        import_labels(tmp_path / "labels", made / "whole", images=made / "images")
    assert {path: path.stat().st_mtime_ns for path in (made / "whole").rglob("*")} == before


@pytest.mark.parametrize("ids", [{"ids_file": True}, {"ids_in_batch": True}, {}])
def test_an_import_that_replaces_another_is_whole(load: Load, tmp_path: Path, ids: dict[str, Any]) -> None:
    ensemble: Any = "average" if "ids_in_batch" in ids else None
    options = ImportOptions(torch_era="new", ensemble=ensemble, classes=CLASSES)
    other = write_epochs(tmp_path / "other", epochs=4, **ids)
    load(other, options=options)
    changed(other / "epoch_2" / "batch_1.tar", 5, lambda labels: -labels)
    assert load(other, options=options, overwrite=True).batches == 12
    content = torch.load(other / "epoch_2" / "batch_1.tar", weights_only=False)
    assert labels_of(tmp_path / "pool")[BatchKey(2, 1)] == content[5].numpy().tobytes()


def relabel(folder: Path, change: Callable[[Any], Any], *names: str) -> None:
    for path in [folder / name for name in names] or sorted(folder.rglob("*.tar")):
        size = path.stat().st_size
        changed(path, -1, change)
        assert path.stat().st_size == size


def begin(load: Load, folder: Path, victim: str = "epoch_2/batch_2.tar", **settings: Any) -> None:
    """Import a folder of which one file is damaged, as far as it goes; then repair it."""
    whole = (folder / victim).read_bytes()
    os.truncate(folder / victim, 50)
    with pytest.raises(LabelFileError):
        load(folder, **settings)
    (folder / victim).write_bytes(whole)


@pytest.mark.usefixtures("one_batch_shards")
@pytest.mark.parametrize("engine", [ONE_PROCESS, LocalExecutor(2)])
def test_other_labels(made: Path, folder: Path, load: Load, tmp_path: Path, engine: LocalExecutor) -> None:
    begin(load, folder)
    relabel(folder, lambda labels: -labels)
    words = (
        "different labels were imported into this pool earlier: epoch 0 batch 0 differs from the label files"
    )
    with pytest.raises(StagingMismatchError, match=words) as caught:
        load(executor=engine)
    assert "--overwrite" in caught.value.hint
    assert not (tmp_path / "pool" / "pool.json").exists()
    import_labels(folder, tmp_path / "alone", images=made / "images")
    assert load(executor=engine, overwrite=True).batches == 9
    assert labels_of(tmp_path / "pool") == labels_of(tmp_path / "alone")


@pytest.mark.usefixtures("one_batch_shards")
def test_one_changed_file_is_noticed(folder: Path, load: Load, tmp_path: Path) -> None:
    begin(load, folder)
    path = folder / "epoch_1" / "batch_1.tar"
    whole, expected = path.read_bytes(), torch.load(path, weights_only=False)[5].numpy().tobytes()
    relabel(folder, lambda labels: labels + 1, "epoch_1/batch_1.tar")
    with pytest.raises(StagingMismatchError, match="epoch 1 batch 1 differs from"):
        load()
    path.write_bytes(whole[:50])
    load()
    assert labels_of(tmp_path / "pool")[BatchKey(1, 1)] == expected


@pytest.mark.usefixtures("one_batch_shards")
@pytest.mark.parametrize("engine", [ONE_PROCESS, LocalExecutor(2)])
def test_the_folder_may_be_copied(folder: Path, load: Load, tmp_path: Path, engine: LocalExecutor) -> None:
    begin(load, folder)
    copied = Path(shutil.copytree(folder, tmp_path / "elsewhere" / "labels", copy_function=shutil.copyfile))
    shutil.rmtree(folder)
    told: list[int] = []
    report = load(copied, executor=engine, progress=lambda done, of: told.append(done))
    assert report.batches == 9
    assert min(told) > (1 if engine is ONE_PROCESS else 0)
    assert told[-1] == 9


@pytest.mark.usefixtures("one_batch_shards")
def test_other_settings_or_fewer_batches_do_not_resume(folder: Path, load: Load) -> None:
    (folder / "sampler_indices_epoch.json").unlink()
    options = ImportOptions(torch_era="new")
    begin(load, folder, options=options)
    with pytest.raises(StagingMismatchError, match="different labels were imported"):
        load(options=ImportOptions(torch_era="new", sampler_seed=7))
    with pytest.raises(StagingMismatchError, match="output_"):
        load(options=ImportOptions(torch_era="new", output_size=64))
    shutil.move(folder / "epoch_2", folder.with_name("epoch_2"))
    with pytest.raises(StagingMismatchError, match="unfinished work does not match"):
        load(options=options)
    shutil.move(folder.with_name("epoch_2"), folder / "epoch_2")
    assert load(options=ImportOptions(torch_era="new", output_size=64), overwrite=True).batches == 9


@pytest.mark.usefixtures("one_batch_shards")
@pytest.mark.parametrize("other", [False, True])
def test_files_by_image_resume_with_their_own(fkd: Path, load: Load, other: bool) -> None:
    options = ImportOptions(classes=CLASSES, batch_size=8)
    begin(load, fkd, "train/class04/image019.tar", options=options)
    if not other:
        assert load(fkd, options=options).batches == 15
        return
    relabel(fkd, lambda pairs: pairs * np.array([[[1.0], [0.5]]], np.float32), "train/class00/image003.tar")
    with pytest.raises(StagingMismatchError, match="imported into this pool earlier: epoch 0 batch 0"):
        load(fkd, options=options)
