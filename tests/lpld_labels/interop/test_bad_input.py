"""Folders with something wrong in them: named, refused, or passed over and remembered."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lpld_labels import PoolReader
from lpld_labels.errors import (
    ImageMismatchError,
    InvalidBatchError,
    LabelFileError,
    LabelPoolError,
    LabelSourceError,
    StagingMismatchError,
    UnsafePickleError,
)
from lpld_labels.inspect.check import check_pool
from lpld_labels.interop.importing import import_labels
from lpld_labels.interop.settings import ImportOptions
from tests.lpld_labels.interop.label_folders import CLASSES, SIZE, write_epochs, write_fkd, write_images

VICTIM = "epoch_1/batch_1.tar"


class Flag:
    """Pickles to a call that leaves a trace."""

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
    """Flip one bit of one label."""
    labels = torch.load(path, weights_only=False)[5].numpy().tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(labels) + 7] ^= 4
    path.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], type[LabelPoolError], str]] = {
    "truncated": (lambda p: os.truncate(p, p.stat().st_size // 2), LabelFileError, "not a whole file"),
    "empty": (lambda p: os.truncate(p, 0), LabelFileError, "not a whole file"),
    "missing": (lambda p: p.unlink(), LabelSourceError, "1 of 9 label files are missing"),
    "hostile": (lambda p: torch.save([1, Flag(p.with_name("trace"))], p), UnsafePickleError, "posix.mkdir"),
    "flipped bit": (flip_bit, LabelFileError, "CRC-32"),
    "another object": (lambda p: torch.save({"state": 1}, p), UnsafePickleError, "EMPTY_DICT"),
    "a tensor": (lambda p: torch.save(torch.zeros(3), p), LabelFileError, "not a label batch"),
    "NaN": (lambda p: changed(p, 5, not_finite), InvalidBatchError, "class 4"),
    "fewer classes": (lambda p: changed(p, 5, lambda t: t[:, :7]), LabelFileError, "columns of labels"),
    "other type": (lambda p: changed(p, 5, lambda t: t.float()), LabelFileError, "type of labels"),
    "double labels": (lambda p: changed(p, 5, lambda t: t.double()), LabelFileError, r"\[5\] labels"),
    "other mix": (lambda p: changed(p, 4, None), LabelFileError, "mixing"),
    "partner outside": (lambda p: changed(p, 2, lambda t: t + 1), LabelFileError, r"\[2\] partners"),
    "strength": (lambda p: changed(p, 3, 1.5), LabelFileError, r"\[3\] strength"),
    "strength is text": (lambda p: changed(p, 3, "half"), LabelFileError, r"\[3\] strength"),
    "box": (lambda p: changed(p, 4, [5, 5, 2, 9]), LabelFileError, r"\[4\] box"),
    "box of three": (lambda p: changed(p, 4, [5, 5, 2]), LabelFileError, r"\[4\] box"),
    "box of floats": (lambda p: changed(p, 4, [0.5, 1.0, 2.0, 3.0]), LabelFileError, r"\[4\] box"),
    "coords": (lambda p: changed(p, 0, lambda t: t * 2), LabelFileError, r"\[0\] coords"),
    "NaN coords": (lambda p: changed(p, 0, lambda t: t * float("nan")), LabelFileError, r"\[0\] coords"),
    "flips": (lambda p: changed(p, 1, lambda t: t.int()), LabelFileError, r"item \[1\]"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with images and labels."""
    root = tmp_path_factory.mktemp("made")
    write_images(root / "images")
    write_epochs(root / "labels", ids_file=True)
    return root


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the labels to spoil."""
    return Path(shutil.copytree(made / "labels", tmp_path / "labels"))


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_and_can_be_skipped(made: Path, folder: Path, tmp_path: Path, name: str) -> None:
    spoil, error, message = DAMAGE[name]
    spoil(folder / VICTIM)
    with pytest.raises(error, match=message) as caught:
        import_labels(folder, tmp_path / "pool", images=made / "images")
    assert VICTIM in str(caught.value) or "epoch 1 batch 1" in str(caught.value)
    assert not (tmp_path / "pool" / "pool.json").exists()
    assert not (folder / "epoch_1" / "trace").exists()

    report = import_labels(folder, tmp_path / "pool", images=made / "images", skip_bad=True)
    assert [hole["file"] for hole in report.holes] == [VICTIM]
    with PoolReader(tmp_path / "pool") as pool:
        assert len(pool) == 8
        assert (1, 1) not in pool
        holes = pool.header.lineage[-1].parameters["holes"]
        assert [hole["file"] for hole in holes] == [VICTIM]
        whole = torch.load(folder / "epoch_2" / "batch_2.tar", weights_only=False)
        assert pool.read_labels((2, 2)).tobytes() == whole[5].numpy().tobytes()


@pytest.mark.usefixtures("one_batch_shards")
def test_a_repaired_file_is_no_hole(made: Path, folder: Path, tmp_path: Path) -> None:
    os.truncate(folder / VICTIM, 10)
    with pytest.raises(LabelFileError):
        import_labels(folder, tmp_path / "pool", images=made / "images")
    shutil.copy(made / "labels" / VICTIM, folder / VICTIM)
    report = import_labels(folder, tmp_path / "pool", images=made / "images", skip_bad=True)
    assert not report.holes
    assert report.batches == 9


@pytest.mark.usefixtures("one_batch_shards")
@pytest.mark.parametrize("repaired", [False, True])
def test_skipped_files_are_looked_at_again(made: Path, folder: Path, tmp_path: Path, repaired: bool) -> None:
    """An import that skips files is interrupted; the one that resumes it does not skip."""

    def stop(done: int, total: int) -> None:
        if done == total - 1:
            raise KeyboardInterrupt

    os.truncate(folder / VICTIM, 10)
    with pytest.raises(KeyboardInterrupt):
        import_labels(folder, tmp_path / "pool", images=made / "images", skip_bad=True, progress=stop)
    if not repaired:
        with pytest.raises(LabelFileError, match=VICTIM):
            import_labels(folder, tmp_path / "pool", images=made / "images")
        return
    shutil.copy(made / "labels" / VICTIM, folder / VICTIM)
    report = import_labels(folder, tmp_path / "pool", images=made / "images")
    assert (report.batches, report.holes) == (9, ())


def test_a_pool_with_holes_is_not_what_a_whole_folder_gives(made: Path, folder: Path, tmp_path: Path) -> None:
    os.truncate(folder / VICTIM, 10)
    import_labels(folder, tmp_path / "pool", images=made / "images", skip_bad=True)
    shutil.copy(made / "labels" / VICTIM, folder / VICTIM)
    with pytest.raises(StagingMismatchError, match="were left out"):
        import_labels(folder, tmp_path / "pool", images=made / "images")
    report = import_labels(folder, tmp_path / "pool", images=made / "images", overwrite=True)
    assert report.batches == 9


def test_many_missing_files(made: Path, folder: Path, tmp_path: Path) -> None:
    shutil.rmtree(folder / "epoch_1")
    with pytest.raises(LabelSourceError, match=r"epoch_1/batch_0.tar: 3 of 9 label files are missing"):
        import_labels(folder, tmp_path / "pool", images=made / "images")
    report = import_labels(folder, tmp_path / "pool", images=made / "images", skip_bad=True)
    assert [hole["file"] for hole in report.holes] == [f"epoch_1/batch_{batch}.tar" for batch in range(3)]
    (folder / "sampler_indices_epoch.json").unlink()
    with pytest.raises(LabelSourceError, match=r"epoch_1/batch_0.tar: 3 of 9 label files are missing"):
        import_labels(
            folder, tmp_path / "other", images=made / "images", options=ImportOptions(torch_era="new")
        )


def test_ids_of_later_epochs_are_only_odd(made: Path, folder: Path, tmp_path: Path) -> None:
    shutil.rmtree(folder / "epoch_2")
    report = import_labels(folder, tmp_path / "pool", images=made / "images")
    assert report.batches == 6
    assert any("1 epochs that have no labels" in line for line in report.odd)


def test_every_file_bad(made: Path, folder: Path, tmp_path: Path) -> None:
    for file in folder.rglob("*.tar"):
        os.truncate(file, 5)
    with pytest.raises(LabelFileError, match=r"epoch_0/batch_0\.tar"):
        import_labels(folder, tmp_path / "pool", images=made / "images", skip_bad=True)
    assert not (tmp_path / "pool").exists()


def test_mixed_batch_sizes(made: Path, folder: Path, tmp_path: Path) -> None:
    content = torch.load(folder / VICTIM, weights_only=False)
    short = [content[0][:5], content[1][:5], torch.arange(5), content[3], content[4], content[5][:5]]
    torch.save(short, folder / VICTIM)
    with pytest.raises(LabelFileError, match=r"rows \(expected 8, got 5\).*last batch of an epoch"):
        import_labels(folder, tmp_path / "pool", images=made / "images")


def test_files_of_another_run(made: Path, folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / VICTIM, folder / "epoch_1" / "batch_3.tar")
    with pytest.raises(LabelSourceError, match="no place in their epoch"):
        import_labels(folder, tmp_path / "pool", images=made / "images")


def test_an_image_that_comes_twice_is_odd(made: Path, folder: Path, tmp_path: Path) -> None:
    stored = json.loads((folder / "sampler_indices_epoch.json").read_text())
    first = import_labels(folder, tmp_path / "as-written", images=made / "images")
    assert not any("more than once" in line for line in first.odd)
    stored["0"][0] = stored["0"][1]
    (folder / "sampler_indices_epoch.json").write_text(json.dumps(stored))
    report = import_labels(folder, tmp_path / "pool", images=made / "images")
    expected = "an image occurs more than once in 1 of 3 epochs, the first 0, as in epochs of a pruned pool"
    assert expected in report.odd


def test_strangers_are_odd(made: Path, folder: Path, tmp_path: Path) -> None:
    (folder / "log.txt").touch()
    (folder / "epoch_0" / "batch_07.tar").touch()
    report = import_labels(folder, tmp_path / "pool", images=made / "images")
    assert any("2 files that are not label files" in line for line in report.odd)


@pytest.mark.parametrize("count", [12, 19, 21, 28, 40])
def test_another_number_of_images(made: Path, tmp_path: Path, count: int) -> None:
    images = write_images(tmp_path / "images", count)
    within_a_batch = 0 < count - 20 < 8  # a program may have dropped so many
    if within_a_batch:
        import_labels(made / "labels", tmp_path / "pool", images=images)
        return
    with pytest.raises(ImageMismatchError, match=r"(labels refer to image|differ in their number of images)"):
        import_labels(made / "labels", tmp_path / "pool", images=images)
    if count > 20:
        options = ImportOptions(allow_extra_images=True)
        assert (
            import_labels(made / "labels", tmp_path / "pool", images=images, options=options).images == count
        )


def test_another_size_of_images(made: Path, tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", size=40)
    with pytest.raises(ImageMismatchError, match=r"epoch_0/batch_0\.tar: crop of slot"):
        import_labels(made / "labels", tmp_path / "pool", images=images, skip_bad=True)


def test_more_class_folders_than_labels(made: Path, tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", 25, per_class=1)
    with pytest.raises(
        LabelPoolError, match=r"(more classes than the labels|differ in their number of images)"
    ):
        import_labels(made / "labels", tmp_path / "pool", images=images)
    options = ImportOptions(allow_extra_images=True)
    with pytest.raises(LabelSourceError, match=r"more classes than the labels.*at most 20.*got 25"):
        import_labels(made / "labels", tmp_path / "pool", images=images, options=options)


def test_another_number_of_classes(made: Path, tmp_path: Path) -> None:
    with pytest.raises(LabelSourceError, match=r"differs from --classes \(expected 1000, got 20\)"):
        import_labels(
            made / "labels", tmp_path / "pool", images=made / "images", options=ImportOptions(classes=1000)
        )


def test_a_view_size_too_small_for_the_boxes(made: Path, tmp_path: Path) -> None:
    options = ImportOptions(output_size=24)
    with pytest.raises(LabelSourceError, match="--output-size"):
        import_labels(
            made / "labels", tmp_path / "pool", images=made / "images", options=options, skip_bad=True
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged"),
        ("[]", "damaged"),
        ('{"0": [1, 2]', "damaged"),
        ('{"0": [1, 2], "1": "x"}', "damaged"),
        ('{"0": [1,, 2]}', "damaged"),
        ('{"0": [1, 2]}', "no image ids for epoch 1"),
    ],
)
def test_damaged_ids(made: Path, folder: Path, tmp_path: Path, text: str, message: str) -> None:
    (folder / "sampler_indices_epoch.json").write_text(text)
    with pytest.raises(LabelSourceError, match=message):
        import_labels(folder, tmp_path / "pool", images=made / "images")


def test_ids_beyond_the_images(made: Path, folder: Path, tmp_path: Path) -> None:
    ids = json.loads((folder / "sampler_indices_epoch.json").read_text())
    ids["2"][0] = 20
    (folder / "sampler_indices_epoch.json").write_text(json.dumps(ids))
    with pytest.raises(ImageMismatchError, match="labels refer to image 20"):
        import_labels(folder, tmp_path / "pool", images=made / "images")


def test_bad_files_of_fkd_leave_the_other_images(made: Path, tmp_path: Path) -> None:
    write_fkd(tmp_path / "labels", made / "images")
    bad = "train/class01/image005.tar"
    os.truncate(tmp_path / "labels" / bad, 100)
    options = ImportOptions(classes=CLASSES, batch_size=8)
    with pytest.raises(LabelFileError, match=r"image005\.tar"):
        import_labels(tmp_path / "labels", tmp_path / "pool", images=made / "images", options=options)
    report = import_labels(
        tmp_path / "labels", tmp_path / "pool", images=made / "images", options=options, skip_bad=True
    )
    assert [hole["file"] for hole in report.holes] == [bad]
    assert report.rows == 5 * 19
    with PoolReader(tmp_path / "pool") as pool:
        assert 5 not in np.concatenate([pool.read_views(key).images for key in pool.keys])


@pytest.mark.parametrize("change", ["image gone", "image more"])
def test_fkd_and_other_images(tmp_path: Path, change: str) -> None:
    images = write_images(tmp_path / "images")
    write_fkd(tmp_path / "labels", images)
    if change == "image gone":
        (images / "class01" / "image005.png").unlink()
    else:
        shutil.copy(images / "class01" / "image005.png", images / "class01" / "new.png")
    with pytest.raises(ImageMismatchError, match=r"(labels for 1 images|have no labels)"):
        import_labels(tmp_path / "labels", tmp_path / "pool", images=images)


def test_fkd_labels_that_two_images_share(tmp_path: Path) -> None:
    """FKD's program cuts names at the first dot, so one label file overwrote the other."""
    images = write_images(tmp_path / "images")
    write_fkd(tmp_path / "labels", images)
    shutil.copy(images / "class01" / "image006.png", images / "class01" / "image005.2.png")
    options = ImportOptions(classes=CLASSES, allow_extra_images=True)
    with pytest.raises(ImageMismatchError, match=r"one label file for two images.*image005\.2\.png"):
        import_labels(tmp_path / "labels", tmp_path / "pool", images=images, options=options)


@pytest.mark.parametrize(
    "content",
    [
        [np.zeros((5, 4), np.float32), np.zeros(5, bool)],
        [np.zeros((5, 4), np.float32), np.zeros(5, bool), np.zeros((5, 3), np.float32)],
        [np.zeros((4, 4), np.float32), np.zeros(5, bool), np.zeros((5, 2, 3), np.float32)],
        [np.zeros((5, 4), np.float32), np.zeros(5, bool), np.full((5, 2, 3), 1.5, np.float32)],
        [np.full((5, 4), np.nan, np.float32), np.zeros(5, bool), np.ones((5, 2, 3), np.float32)],
        [np.zeros((4, 4), np.float32), np.zeros(4, bool), np.ones((4, 2, 3), np.float32)],
        [np.zeros((5, 4), np.float32), np.zeros(5, bool), np.ones((5, 2, 4), np.float32)],
    ],
)
def test_fkd_files_of_the_wrong_form(made: Path, tmp_path: Path, content: list[Any]) -> None:
    write_fkd(tmp_path / "labels", made / "images")
    torch.save(content, tmp_path / "labels" / "train" / "class04" / "image019.tar")
    with pytest.raises(LabelFileError, match=r"image019\.tar"):
        import_labels(
            tmp_path / "labels",
            tmp_path / "pool",
            images=made / "images",
            options=ImportOptions(classes=CLASSES),
        )


FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-45,
    6e-8,
    65504.0,
    3e38,
    -3e38,
    float("inf"),
    float("-inf"),
    float("nan"),
)


def tensors(kinds: Any, rows: int, columns: int) -> st.SearchStrategy[torch.Tensor]:
    """Return a strategy of tensors with special values and, rarely, wrong shapes."""
    shapes = st.sampled_from([(rows, columns)] * 6 + [(rows, 0), (rows + 1, columns), (rows,)])
    values = st.lists(st.sampled_from(FLOATS[:8]), max_size=3) | st.lists(st.sampled_from(FLOATS), max_size=3)

    def make(shape: tuple[int, ...], dtype: torch.dtype, few: list[float]) -> torch.Tensor:
        array = torch.linspace(0, 1, int(np.prod(shape))).reshape(shape).to(dtype)
        array.reshape(-1)[: len(few)] = torch.tensor(few)[: array.numel()].to(dtype)
        return array

    return st.builds(make, shapes, st.sampled_from(kinds), values)


HALF_OR_SINGLE = (torch.float16, torch.float16, torch.float32)
INTEGERS = st.integers(-1, 9) | st.sampled_from([2**15, 2**31, 2**63, 10**400])
WRONG_ITEMS: dict[int, st.SearchStrategy[Any]] = {
    0: tensors(HALF_OR_SINGLE, 8, 4),
    1: st.integers(0, 9).map(lambda rows: torch.ones(rows, dtype=torch.bool)) | tensors(HALF_OR_SINGLE, 8, 7),
    2: st.lists(st.integers(0, 9), min_size=7, max_size=8).map(torch.tensor) | st.none(),
    3: st.sampled_from(FLOATS) | st.sampled_from([np.float32(-0.0), np.float64(1.0), None, 1]),
    4: st.lists(INTEGERS | st.integers(0, SIZE + 1).map(np.int64), min_size=3, max_size=4) | st.none(),
    5: tensors(HALF_OR_SINGLE, 8, CLASSES),
    6: st.lists(st.integers(-1, 30), min_size=7, max_size=8).map(torch.tensor),
}
WRONG_LABELS_OF_IMAGES: dict[int, st.SearchStrategy[Any]] = {
    0: tensors(HALF_OR_SINGLE, 5, 4),
    1: st.integers(4, 5).map(lambda rows: torch.ones(rows, dtype=torch.bool)),
    2: tensors(HALF_OR_SINGLE, 5, 2)
    | tensors((torch.int64, torch.float32), 5, 1).map(lambda t: t.reshape(-1))
    | st.lists(
        st.tuples(st.integers(0, CLASSES), st.sampled_from(FLOATS[:3] * 2 + FLOATS)), min_size=5, max_size=5
    ).map(torch.tensor),
}
SOURCES = {
    "batches": WRONG_ITEMS,
    "images": WRONG_LABELS_OF_IMAGES,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_imported_pool_verifies(kind: str, tmp_path: Path) -> None:
    """Draw items of any value and shape: an import refuses them, or its pool is whole."""
    images, source = write_images(tmp_path / "images"), tmp_path / "labels"
    items = SOURCES[kind]
    if kind == "batches":
        write_epochs(source, epochs=1, ids_in_batch=True)
    else:
        write_fkd(source, images, kept=1)
    # The two complete batches, or all files.
    files = sorted(source.rglob("*.tar"))[: 2 if kind == "batches" else None]
    sound = {path: path.read_bytes() for path in files}
    published = []

    @example(place=3, value=-0.0, everywhere=False)
    @example(place=3, value=-0.0, everywhere=True)
    @given(place=st.sampled_from(list(items)), value=st.data(), everywhere=st.booleans())
    def check(place: int, value: Any, everywhere: bool) -> None:
        if kind == "images" and place not in items:
            return
        item = value if isinstance(value, float) else value.draw(items[place])
        for path in files:
            path.write_bytes(sound[path])
            if everywhere or path == files[0]:
                changed(path, place, item)
        pool = tmp_path / "pool"
        options = ImportOptions(
            classes=CLASSES, output_size=SIZE, ensemble="average" if kind == "batches" else None
        )
        try:
            import_labels(source, pool, images=images, options=options)
        except LabelPoolError:
            assert not pool.exists()
            return
        published.append(item)
        assert check_pool(pool).problems == ()
        shutil.rmtree(pool)

    check()
    assert published


@pytest.mark.parametrize("fewer_crops", [True, False])
def test_one_bad_file_of_an_image_costs_that_image_only(tmp_path: Path, fewer_crops: bool) -> None:
    """The first file has fewer crops than all others, or names a class twice."""
    images = write_images(tmp_path / "images")
    write_fkd(tmp_path / "labels", images)
    first = min((tmp_path / "labels").rglob("*.tar"))
    if fewer_crops:
        torch.save([item[:2] for item in torch.load(first, weights_only=False)], first)
    else:
        changed(first, 2, lambda labels: np.repeat(labels[:, :, :1], labels.shape[2], axis=2))
    options = ImportOptions(classes=CLASSES, batch_size=8)
    with pytest.raises(LabelFileError, match=first.name):
        import_labels(tmp_path / "labels", tmp_path / "pool", images=images, options=options)
    report = import_labels(
        tmp_path / "labels", tmp_path / "pool", images=images, options=options, skip_bad=True
    )
    assert [Path(hole["file"]).name for hole in report.holes] == [first.name]
    assert report.rows == 5 * 19
