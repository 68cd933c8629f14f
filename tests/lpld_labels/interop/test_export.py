"""Exports: what older trainers load, and what becomes the same pool again."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lpld_labels import PoolReader, PoolWriter, Teacher
from lpld_labels.codecs import codec_named
from lpld_labels.errors import (
    InvalidArgumentError,
    LabelSourceError,
    ManifestError,
    PoolConflictError,
    PoolWriteError,
)
from lpld_labels.interop.exporting import export_pool
from lpld_labels.interop.importing import import_labels
from lpld_labels.interop.layouts import HEADER_FILE
from lpld_labels.interop.settings import ExportOptions, ImportOptions
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.settings import EncodeSettings
from tests.factories import make_batch, make_header, make_images, write_pool
from tests.lpld_labels.interop.conftest import REFERENCES, Reference
from tests.lpld_labels.interop.label_folders import CLASSES, write_epochs, write_fkd, write_images
from tests.lpld_labels.loader.loader_pools import build
from tests.lpld_labels.loader.loader_pools import write_images as write_folder

EXPORTED = {name: form for name, (_, form) in REFERENCES.items()}


def assert_same_list(ours: list[Any], theirs: list[Any]) -> None:
    """Compare two files' lists: types, dtypes, shapes and bits. Box sides may be plain ints."""
    assert type(ours) is list
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        if isinstance(their, torch.Tensor):
            assert (our.dtype, our.shape) == (their.dtype, their.shape)
            assert torch.equal(our, their)
        elif isinstance(their, list):
            assert [int(side) for side in our] == [int(side) for side in their]
            assert isinstance(our[0], torch.Tensor) == isinstance(their[0], torch.Tensor)
        else:
            assert type(our) is type(their)
            assert our == their


@pytest.mark.parametrize("name", EXPORTED)
def test_the_original_folder_comes_back(
    tmp_path: Path, reference: Callable[[str], Reference], name: str
) -> None:
    source, images = reference(name).labels, reference(name).images
    first = import_labels(source, tmp_path / "pool", images=images)
    with PoolReader(tmp_path / "pool") as pool:
        export_pool(pool, tmp_path / "labels", label_format=EXPORTED[name])
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    side = [Path(HEADER_FILE)] if any(file.suffix == ".json" for file in files) else []
    assert sorted(files + side) == sorted(
        path.relative_to(tmp_path / "labels") for path in (tmp_path / "labels").rglob("*") if path.is_file()
    )
    for file in files:
        if file.suffix == ".json":
            assert (tmp_path / "labels" / file).read_bytes() == (source / file).read_bytes()
        else:
            ours = torch.load(tmp_path / "labels" / file)
            assert_same_list(ours, torch.load(source / file, weights_only=False))
    again = import_labels(tmp_path / "labels", tmp_path / "again", images=images)
    assert again.content_digest == first.content_digest
    assert again.format == first.format


def test_files_can_be_mapped(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    write_epochs(tmp_path / "labels", epochs=1, ids_file=True)
    import_labels(tmp_path / "labels", tmp_path / "pool", images=tmp_path / "images")
    with PoolReader(tmp_path / "pool") as pool:
        export_pool(pool, tmp_path / "out", label_format="lpld")
    file = Path("epoch_0") / "batch_0.tar"
    assert_same_list(torch.load(str(tmp_path / "out" / file), mmap=True), torch.load(tmp_path / "out" / file))


@pytest.fixture
def make_pool(tmp_path: Path) -> Callable[..., Path]:
    """Write a pool of made-up batches with any codec, keys and rows."""

    def write(
        codec: str, keys: list[tuple[int, int]], *, rows: dict[tuple[int, int], int] | None = None
    ) -> Path:
        path = tmp_path / f"pool-{codec.replace(':', '-')}"
        with PoolWriter(path, header=make_header(), images=make_images(), codec=codec_named(codec)) as writer:
            for key in keys:
                writer.append(make_batch(*key, rows=(rows or {}).get(key, 8)))
            writer.commit()
        return path

    return write


WHOLE = [(epoch, batch) for epoch in range(2) for batch in range(3)]


@pytest.mark.parametrize("codec", ["f16", "f16:plain", "f32", "int8", "int4", "topk:4"])
@pytest.mark.parametrize("label_format", ["lpld", "lpqld"])
def test_any_codec_is_decoded(
    tmp_path: Path, make_pool: Callable[..., Path], codec: str, label_format: str
) -> None:
    with PoolReader(make_pool(codec, WHOLE)) as pool:
        export_pool(pool, tmp_path / "out", label_format=label_format)
        for number, key in enumerate(pool.keys):
            name = (
                f"epoch_{key.epoch}/batch_{key.batch}.tar"
                if label_format == "lpld"
                else f"batch_{number}.tar"
            )
            content = torch.load(tmp_path / "out" / name)
            dense = pool.read_labels(key, dtype=np.float32 if codec == "f32" else np.float16)
            if label_format == "lpqld" and codec.startswith("topk"):
                values, classes = content[5], content[6].long()
                assert (classes.shape, content[6].dtype) == ((8, 4), torch.int16)
                assert torch.equal(torch.from_numpy(dense.copy()).gather(1, classes), values)
            else:
                assert content[5].numpy().tobytes() == dense.tobytes()


def test_fitted_codecs_are_decoded_too(tmp_path: Path, make_pool: Callable[..., Path]) -> None:
    with PoolReader(make_pool("f16", [(epoch, batch) for epoch in range(20) for batch in range(6)])) as pool:
        encode_pool(pool, tmp_path / "small", EncodeSettings(codec="klt", fidelity=0.5))
    with PoolReader(tmp_path / "small") as pool:
        assert pool.codec.name == "klt"
        export_pool(pool, tmp_path / "out", label_format="lpld")
        for key in pool.keys:
            content = torch.load(tmp_path / "out" / f"epoch_{key.epoch}" / f"batch_{key.batch}.tar")
            assert content[5].numpy().tobytes() == pool.read_labels(key, dtype=np.float16).tobytes()


def test_top_k_of_whole_rows(tmp_path: Path, make_pool: Callable[..., Path]) -> None:
    with PoolReader(make_pool("f16", WHOLE)) as pool:
        export_pool(pool, tmp_path / "out", label_format="lpqld", options=ExportOptions(top_k=3))
        for number, key in enumerate(pool.keys):
            content = torch.load(tmp_path / "out" / f"batch_{number}.tar")
            expected = torch.from_numpy(pool.read_labels(key).astype(np.float32)).topk(3)
            assert torch.equal(content[5].float(), expected.values)


def test_a_pruned_pool_is_laid_out_anew(tmp_path: Path, make_pool: Callable[..., Path]) -> None:
    """Old trainers divide a running number by the length of epoch 0: no gaps, equal epochs."""
    keys = [(0, 1), (2, 0), (2, 5), (3, 1), (7, 2), (7, 3), (9, 0), (11, 4)]
    with PoolReader(make_pool("f16", keys)) as pool:
        report = export_pool(pool, tmp_path / "out", label_format="lpld")
        assert any("renumbered" in note for note in report.notes)
        stored = json.loads((tmp_path / "out" / "sampler_indices_epoch.json").read_text())
        length = 50 // 8
        for number, key in enumerate(pool.keys):
            epoch, batch = divmod(number, length)
            content = torch.load(tmp_path / "out" / f"epoch_{epoch}" / f"batch_{batch}.tar")
            labelled = pool.read(key)
            assert content[5].numpy().tobytes() == labelled.labels.tobytes()
            assert stored[str(epoch)][batch * 8 : batch * 8 + 8] == labelled.images.tolist()


def test_epochs_of_unequal_length_are_laid_out_anew(tmp_path: Path, make_pool: Callable[..., Path]) -> None:
    keys = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    with PoolReader(make_pool("f16", keys)) as pool:
        export_pool(pool, tmp_path / "out", label_format="lpld")
        assert not (tmp_path / "out" / "epoch_2").exists()
        sixth = torch.load(tmp_path / "out" / "epoch_0" / "batch_5.tar")
        assert sixth[5].numpy().tobytes() == pool.read_labels((2, 0)).tobytes()


def test_short_batches_have_no_place_in_a_pruned_folder(
    tmp_path: Path, make_pool: Callable[..., Path]
) -> None:
    path = make_pool("f16", [(0, 1), (0, 6), (4, 2)], rows={(0, 6): 2})
    with PoolReader(path) as pool:
        report = export_pool(pool, tmp_path / "out", label_format="lpld")
    assert (report.batches, report.rows) == (2, 16)
    assert any("1 incomplete batches left out" in note for note in report.notes)


def test_short_last_batches_keep_their_place(tmp_path: Path, make_pool: Callable[..., Path]) -> None:
    with PoolReader(make_pool("f16", WHOLE, rows={(0, 2): 5, (1, 2): 5})) as pool:
        report = export_pool(pool, tmp_path / "out", label_format="lpld")
    assert (report.batches, report.notes) == (6, ())
    assert torch.load(tmp_path / "out" / "epoch_1" / "batch_2.tar")[5].shape == (5, 10)


def test_a_format_without_ids_takes_only_ids_it_implies(
    tmp_path: Path, make_pool: Callable[..., Path]
) -> None:
    with (
        PoolReader(make_pool("f16", WHOLE)) as pool,
        pytest.raises(LabelSourceError, match=r"stores no image ids.*--format lpld"),
    ):
        export_pool(pool, tmp_path / "out", label_format="sre2l")
    with (
        PoolReader(make_pool("int8", WHOLE[1:])) as pool,
        pytest.raises(LabelSourceError, match=r"pruned or incomplete.*--format lpld"),
    ):
        export_pool(pool, tmp_path / "out", label_format="sre2l")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("old", [False, True])
def test_sre2l_round_trip_in_both_eras(tmp_path: Path, old: bool) -> None:
    write_images(tmp_path / "images")
    write_epochs(tmp_path / "labels", epochs=3, old=old)
    first = import_labels(tmp_path / "labels", tmp_path / "pool", images=tmp_path / "images")
    with PoolReader(tmp_path / "pool") as pool:
        report = export_pool(pool, tmp_path / "out", label_format="sre2l")
    assert any(("< 1.11" if old else ">= 1.11") in note for note in report.notes)
    again = import_labels(tmp_path / "out", tmp_path / "again", images=tmp_path / "images")
    assert again.content_digest == first.content_digest


def test_what_the_formats_cannot_hold(tmp_path: Path) -> None:
    header = make_header(mix="none")
    with PoolWriter(tmp_path / "pool", header=header, images=make_images()) as writer:
        writer.append(make_batch(0, 0, mix="none", patches=2))
        writer.commit()
    with PoolReader(tmp_path / "pool") as pool, pytest.raises(LabelSourceError, match="shuffled patches"):
        export_pool(pool, tmp_path / "out", label_format="lpld")
    assert [path.name for path in tmp_path.iterdir()] == ["pool"]


def test_cutouts_that_the_program_would_not_paint(tmp_path: Path) -> None:
    header = make_header(mix="none")
    with PoolWriter(tmp_path / "pool", header=header, images=make_images()) as writer:
        writer.append(make_batch(0, 0, mix="none", cutout=True))
        writer.commit()
    with PoolReader(tmp_path / "pool") as pool, pytest.raises(LabelSourceError, match="cut-outs cannot"):
        export_pool(pool, tmp_path / "out", label_format="lpld")


def test_probabilities_are_no_logits(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    write_fkd(tmp_path / "labels", images)
    import_labels(
        tmp_path / "labels", tmp_path / "pool", images=images, options=ImportOptions(classes=CLASSES)
    )
    with PoolReader(tmp_path / "pool") as pool, pytest.raises(LabelSourceError, match="probabilities"):
        export_pool(pool, tmp_path / "out", label_format="lpld")


def test_too_large_for_small_types(tmp_path: Path) -> None:
    header = make_header(batch_size=300)
    with PoolWriter(tmp_path / "pool", header=header, images=make_images()) as writer:
        writer.append(make_batch(0, 0))
        writer.commit()
    with (
        PoolReader(tmp_path / "pool") as pool,
        pytest.raises(LabelSourceError, match="batch size is too large"),
    ):
        export_pool(pool, tmp_path / "out", label_format="lpqld")


def test_places_and_names(tmp_path: Path, make_pool: Callable[..., Path]) -> None:
    with PoolReader(make_pool("f16", WHOLE)) as pool:
        (tmp_path / "taken").mkdir()
        (tmp_path / "taken" / "notes.txt").touch()
        with pytest.raises(PoolConflictError, match="already here"):
            export_pool(pool, tmp_path / "taken", label_format="lpld")
        with pytest.raises(InvalidArgumentError, match="unknown export format"):
            export_pool(pool, tmp_path / "out", label_format="zip")
        (tmp_path / "file").touch()
        with pytest.raises(PoolWriteError):
            export_pool(pool, tmp_path / "file" / "below", label_format="lpld")


@pytest.mark.parametrize("label_format", ["lpld", "lpqld"])
def test_an_interrupted_export_goes_on(
    tmp_path: Path, make_pool: Callable[..., Path], label_format: str, reused: list[str]
) -> None:
    calls: list[int] = []

    def stop(done: int, total: int) -> None:
        del total
        if done == 3:
            raise KeyboardInterrupt

    with PoolReader(make_pool("f16", WHOLE)) as pool:
        export_pool(pool, tmp_path / "undisturbed", label_format=label_format)
        with pytest.raises(KeyboardInterrupt):
            export_pool(pool, tmp_path / "out", label_format=label_format, progress=stop)
        assert not (tmp_path / "out").exists()
        export_pool(pool, tmp_path / "out", label_format=label_format, progress=lambda d, t: calls.append(d))
    assert calls[0] == 4, "three files were safe"
    assert len(reused) == 1
    assert f"{tmp_path / 'out'}: resumes, 3 of " in reused[0]
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "undisturbed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "pool-f16", "undisturbed"]


def test_a_kill_after_the_last_rename_leaves_nothing_behind(
    tmp_path: Path, make_pool: Callable[..., Path]
) -> None:
    with PoolReader(make_pool("f16", WHOLE)) as pool:
        export_pool(pool, tmp_path / "out", label_format="lpld")
        (tmp_path / ".out.unfinished").mkdir()
        (tmp_path / ".out.unfinished" / "job.json").write_text("{}")
        export_pool(pool, tmp_path / "out", label_format="lpld")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "pool-f16"]


def test_an_export_is_left_or_replaced_but_never_mixed(
    tmp_path: Path, make_pool: Callable[..., Path]
) -> None:
    with PoolReader(make_pool("f16", WHOLE)) as pool:
        first = export_pool(pool, tmp_path / "out", label_format="lpld")
        before = (tmp_path / "out").stat().st_ino
        assert export_pool(pool, tmp_path / "out", label_format="lpld") == first
        assert (tmp_path / "out").stat().st_ino == before
        with pytest.raises(PoolConflictError, match="--overwrite"):
            export_pool(pool, tmp_path / "out", label_format="lpqld")
        export_pool(pool, tmp_path / "out", label_format="lpqld", overwrite=True)
        export_pool(pool, tmp_path / "fresh", label_format="lpqld")
        assert read_tree(tmp_path / "out") == read_tree(tmp_path / "fresh")
        (tmp_path / "out" / "notes.txt").write_text("mine")
        with pytest.raises(PoolConflictError, match="not a label file"):
            export_pool(pool, tmp_path / "out", label_format="lpld", overwrite=True)


def test_archives_that_are_no_labels_are_not_replaced(tmp_path: Path, make_pool: Callable[..., Path]) -> None:
    """The name says little: data sets are published as .tar files, too."""
    archives = tmp_path / "archives"
    archives.mkdir()
    for name in ("n01440764.tar", "batch_0.tar"):
        with tarfile.open(archives / name, "w") as archive:
            archive.addfile(tarfile.TarInfo("photo.jpg"))
    shutil.copyfile(archives / "batch_0.tar", tmp_path / "backup.tar")
    before = read_tree(tmp_path)
    with PoolReader(make_pool("f16", WHOLE)) as pool:
        with pytest.raises(PoolConflictError, match="not a label file"):
            export_pool(pool, archives, label_format="lpld", overwrite=True)
        with pytest.raises(PoolConflictError, match="not a folder"):
            export_pool(pool, tmp_path / "backup.tar", label_format="lpld", overwrite=True)
    after = read_tree(tmp_path)
    assert {name: after[name] for name in before} == before


def read_tree(root: Path) -> dict[str, bytes]:
    """Return the files below a directory."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("label_format", ["lpld", "lpqld", "gvbsm"])
def test_a_folder_is_imported_as_the_pool_that_was_exported(tmp_path: Path, label_format: str) -> None:
    """Size, resize code and normalisation are no program's. Layouts without the header need options."""
    images = write_folder(tmp_path / "images", 16)
    made = build(tmp_path / "made", images, size=18, batch_size=8)
    teachers = (Teacher(name="mine", mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)),)
    header = replace(made.header, teachers=teachers)
    with write_pool(tmp_path / "pool", list(made), header=header, images=made.images) as pool:
        export_pool(pool, tmp_path / "out", label_format=label_format)
        given = ImportOptions()
        if label_format == "gvbsm":
            assert not (tmp_path / "out" / HEADER_FILE).exists()
            mean, std = teachers[0].mean, teachers[0].std
            given = ImportOptions(output_size=18, resize="torch", ensemble="average", mean=mean, std=std)
        report = import_labels(tmp_path / "out", tmp_path / "again", images=images, options=given)
        assert report.content_digest == pool.manifest.content_digest
    if label_format == "gvbsm":
        return
    with PoolReader(tmp_path / "again") as again:
        assert replace(again.header, lineage=()) == replace(header, lineage=())
    export_pool(made, tmp_path / "out", label_format=label_format, overwrite=True)
    other = ImportOptions(
        resize="pil_bicubic", output_size=20, mean=(0.5,) * 3, std=(0.5,) * 3, teachers=("a",)
    )
    import_labels(tmp_path / "out", tmp_path / "other", images=images, options=other)
    with PoolReader(tmp_path / "other") as pool:
        assert pool.header.augmentation.resize == "pil_bicubic"
        assert pool.header.augmentation.output_width == 20
        assert pool.header.teachers == (Teacher(name="a", mean=(0.5,) * 3, std=(0.5,) * 3),)
    for text, problem in (("{", "not valid JSON"), ('{"classes": 6}', "batch_size"), ("[]", "an object")):
        (tmp_path / "out" / HEADER_FILE).write_text(text)
        with pytest.raises(ManifestError, match=problem):
            import_labels(tmp_path / "out", tmp_path / "bad", images=images)
