import json
import shutil
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lpld_labels import PoolReader, Teacher
from lpld_labels.errors import (
    InvalidArgumentError,
    LabelSourceError,
    ManifestError,
    PoolConflictError,
    PoolWriteError,
)
from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.interop.exporting import Claim, ExportReport, export_pool, moved_crops
from lpld_labels.interop.importing import import_labels
from lpld_labels.interop.layouts import HEADER_FILE, TINY
from lpld_labels.interop.settings import ExportOptions, ImportOptions
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.settings import EncodeSettings
from tests.factories import interrupt_at, make_batch, make_header, tree, write_pool
from tests.lpld_labels.interop.conftest import REFERENCES, References
from tests.lpld_labels.interop.label_folders import CLASSES, write_epochs, write_fkd, write_images
from tests.lpld_labels.loader.loader_pools import build
from tests.lpld_labels.loader.loader_pools import write_images as write_folder

WHOLE = [(epoch, batch) for epoch in range(2) for batch in range(3)]
Keys = Sequence[tuple[int, int]]
Make = Callable[..., PoolReader]


@pytest.fixture
def make_pool(tmp_path: Path) -> Make:
    def write(codec: str, keys: Keys, *, rows: Mapping[tuple[int, int], int] | None = None) -> PoolReader:
        batches = [make_batch(*key, rows=(rows or {}).get(key, 8)) for key in keys]
        return write_pool(tmp_path / "pool", batches, codec=codec, header=make_header())

    return write


def exported(
    pool: PoolReader | Path, folder: Path, label_format: str = "lpld", **options: Any
) -> ExportReport:
    with PoolReader(pool) if isinstance(pool, Path) else pool as reader:
        return export_pool(reader, folder, label_format=label_format, **options)


def assert_same_list(ours: list[Any], theirs: list[Any]) -> None:
    """Compare two files' lists: types, dtypes, shapes and bits. Box sides may be plain ints."""
    assert type(ours) is list
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


def assert_round_trip(
    source: Path, images: Path, tmp_path: Path, *, label_format: str = "auto"
) -> ExportReport:
    """Import, export and import a folder again: the same files and the same pool."""
    first = import_labels(source, tmp_path / "pool", images=images, label_format=label_format)
    report = exported(tmp_path / "pool", tmp_path / "out", first.format)
    ours, theirs = tree(tmp_path / "out"), tree(source)
    side = {HEADER_FILE} if any(file.endswith(".json") for file in theirs) else set()
    assert ours.keys() == theirs.keys() | side
    for file, data in theirs.items():
        if file.endswith(".json"):
            assert ours[file] == data
        elif data is not None:
            saved = torch.load(tmp_path / "out" / file)
            assert_same_list(saved, torch.load(source / file, weights_only=False))
            assert_same_list(torch.load(str(tmp_path / "out" / file), mmap=True), saved)
    again = import_labels(tmp_path / "out", tmp_path / "again", images=images)
    assert (again.format, again.content_digest) == (first.format, first.content_digest)
    return report


@pytest.mark.parametrize("name", REFERENCES)
def test_the_original_folder_comes_back(tmp_path: Path, reference: References, name: str) -> None:
    assert_round_trip(reference(name).labels, reference(name).images, tmp_path)


@pytest.mark.parametrize(
    ("options", "era"),
    [({"old": False}, ">= 1.11"), ({"old": True}, "< 1.11")]
    + [({"epochs": 2, "ids_in_batch": True, "mix": mix, "classes": 100}, "") for mix in ("mixup", "cutmix")],
)
def test_sre2l_and_gvbsm_come_back(tmp_path: Path, options: dict[str, Any], era: str) -> None:
    images = write_images(tmp_path / "images")
    report = assert_round_trip(write_epochs(tmp_path / "labels", **options), images, tmp_path)
    assert (report.batches, report.rows) == ((9, 60) if era else (6, 40))
    assert not era or any(era in note for note in report.notes)


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


@pytest.mark.parametrize("codec", ["f16", "f16:plain", "f32", "int8", "int4", "topk:4", "klt"])
@pytest.mark.parametrize("label_format", ["lpld", "lpqld"])
def test_any_codec_is_decoded(tmp_path: Path, make_pool: Make, codec: str, label_format: str) -> None:
    fitted = codec == "klt"
    keys = [(epoch, batch) for epoch in range(20) for batch in range(6)] if fitted else WHOLE
    pool = make_pool("f16" if fitted else codec, keys)
    if fitted:
        encode_pool(pool, tmp_path / "small", EncodeSettings(codec="klt", fidelity=0.5))
        pool = PoolReader(tmp_path / "small")
    export_pool(pool, tmp_path / "out", label_format=label_format)
    for number, (epoch, batch) in enumerate(pool.keys):
        name = f"epoch_{epoch}/batch_{batch}.tar" if label_format == "lpld" else f"batch_{number}.tar"
        content = torch.load(tmp_path / "out" / name)
        dense = pool.read_labels((epoch, batch), dtype=np.float32 if codec == "f32" else np.float16)
        if label_format == "lpqld" and codec.startswith("topk"):
            values, classes = content[5], content[6].long()
            assert (classes.shape, content[6].dtype) == ((8, 4), torch.int16)
            assert torch.equal(torch.from_numpy(dense.copy()).gather(1, classes), values)
        else:
            assert content[5].numpy().tobytes() == dense.tobytes()


@pytest.mark.parametrize(
    "keys",
    [
        [(0, 1), (2, 0), (2, 5), (3, 1), (7, 2), (7, 3), (9, 0), (11, 4)],
        [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)],
    ],
    ids=["pruned", "unequal epochs"],
)
def test_a_pool_with_gaps_is_laid_out_anew(tmp_path: Path, make_pool: Make, keys: Keys) -> None:
    """Old trainers divide a running number by the length of epoch 0: no gaps, equal epochs."""
    with make_pool("f16", keys) as pool:
        report = export_pool(pool, tmp_path / "out", label_format="lpld")
        assert any("renumbered" in note for note in report.notes)
        stored = json.loads((tmp_path / "out" / "sampler_indices_epoch.json").read_text())
        for number, key in enumerate(pool.keys):
            epoch, batch = divmod(number, 50 // 8)
            content = torch.load(tmp_path / "out" / f"epoch_{epoch}" / f"batch_{batch}.tar")
            labelled = pool.read(key)
            assert content[5].numpy().tobytes() == labelled.labels.tobytes()
            assert stored[str(epoch)][batch * 8 : batch * 8 + 8] == labelled.images.tolist()
    assert not (tmp_path / "out" / "epoch_2").exists()


def test_short_batches_are_left_out_of_pruned_folders(tmp_path: Path, make_pool: Make) -> None:
    whole = exported(make_pool("f16", WHOLE, rows={(0, 2): 5, (1, 2): 5}), tmp_path / "whole")
    assert (whole.batches, whole.notes) == (6, ())
    assert torch.load(tmp_path / "whole" / "epoch_1" / "batch_2.tar")[5].shape == (5, 10)
    shutil.rmtree(tmp_path / "pool")
    pruned = exported(make_pool("f16", [(0, 1), (0, 6), (4, 2)], rows={(0, 6): 2}), tmp_path / "pruned")
    assert (pruned.batches, pruned.rows) == (2, 16)
    assert any("1 incomplete batches left out" in note for note in pruned.notes)


@pytest.mark.parametrize(
    ("keys", "label_format", "message"),
    [
        (WHOLE, "sre2l", r"stores no image ids.*--format lpld"),
        (WHOLE[1:], "sre2l", r"pruned or incomplete.*--format lpld"),
        # G-VBSM's trainer counts through all images and takes file after file.
        (WHOLE, "gvbsm", "all 50 images in every epoch"),
    ],
)
def test_a_format_that_implies_its_places_takes_no_others(
    tmp_path: Path, make_pool: Make, keys: Keys, label_format: str, message: str
) -> None:
    with pytest.raises(LabelSourceError, match=message):
        exported(make_pool("f16", keys), tmp_path / "out", label_format)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("header", "batch", "label_format", "message"),
    [
        ({"mix": "none"}, {"mix": "none", "patches": 2}, "lpld", "shuffled patches"),
        ({"mix": "none"}, {"mix": "none", "cutout": True}, "lpld", "cut-outs cannot"),
        ({"batch_size": 300}, {}, "lpqld", "batch size is too large"),
    ],
)
def test_what_the_formats_cannot_hold(
    tmp_path: Path, header: dict[str, Any], batch: dict[str, Any], label_format: str, message: str
) -> None:
    pool = write_pool(tmp_path / "pool", [make_batch(0, 0, **batch)], header=make_header(**header))
    with pytest.raises(LabelSourceError, match=message):
        exported(pool, tmp_path / "out", label_format)
    assert [path.name for path in tmp_path.iterdir()] == ["pool"]


def test_probabilities_are_no_logits(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    write_fkd(tmp_path / "labels", images)
    options = ImportOptions(classes=CLASSES)
    import_labels(tmp_path / "labels", tmp_path / "pool", images=images, options=options)
    with pytest.raises(LabelSourceError, match="probabilities"):
        exported(tmp_path / "pool", tmp_path / "out")


def claims_of(pool: PoolReader | Path, folder: Path) -> dict[str, Claim]:
    """Export as LPLD's; return the claims by the last word of their option."""
    claims = exported(pool, folder).claims
    return {claim.option.split(",")[0].split()[-1]: claim for claim in claims}


@pytest.mark.parametrize("known", [True, False])
def test_a_folder_of_theirs_replays_if_its_normalisation_is_theirs(tmp_path: Path, known: bool) -> None:
    images = write_images(tmp_path / "images", size=64)
    source = write_epochs(tmp_path / "labels", epochs=2, ids_file=True, classes=200, size=64)
    options = ImportOptions() if known else ImportOptions(mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    import_labels(source, tmp_path / "pool", images=images, options=options)
    claims = claims_of(tmp_path / "pool", tmp_path / "out")
    assert claims["batch"].holds == claims["epoch"].holds == known
    wrong = f"normalises by mean {list(TINY.mean)}, unknown by mean [0.5, 0.5, 0.5]"
    assert ("must not exceed 6" if known else wrong) in claims["batch"].why


def test_a_pool_in_its_own_order_does_not_replay_by_epoch(tmp_path: Path, make_pool: Make) -> None:
    """Three defects, each named: order, resize, normalisation and size of views."""
    keys = [(epoch, batch) for epoch in range(2) for batch in range(7)]
    claims = claims_of(make_pool("f16", keys, rows={(0, 6): 2, (1, 6): 2}), tmp_path / "out")
    assert not claims["batch"].holds
    for text in ("it resizes with Pillow", "224 or 64 pixels, the pool's 32 x 32", "--resize pil"):
        assert text in claims["batch"].why
    assert "it assumes the order of its sampler" in claims["epoch"].why
    assert "its sampler" not in claims["batch"].why


def test_a_pruned_pool_replays_by_batch_alone(tmp_path: Path, make_pool: Make) -> None:
    claims = claims_of(make_pool("f16", [(0, 1), (3, 2), (5, 0)]), tmp_path / "out")
    assert "not a complete run" in claims["epoch"].why
    assert "never shows the last batch" in claims["batch_to_epoch"].why


@pytest.mark.parametrize(
    ("codec", "top_k", "changes"), [("f16", None, False), ("f16", 3, True), ("topk:4", None, True)]
)
def test_dropped_tail(tmp_path: Path, make_pool: Make, codec: str, top_k: int | None, changes: bool) -> None:
    with make_pool(codec, [(0, 0)]) as pool:
        report = export_pool(pool, tmp_path / "out", label_format="lpqld", options=ExportOptions(top_k=top_k))
        (claim,) = report.claims
        assert ("largest to probability 0" in claim.why) is changes
        if top_k is not None:
            values = torch.load(tmp_path / "out" / "batch_0.tar")[5].float()
            assert torch.equal(
                values, torch.from_numpy(pool.read_labels((0, 0)).astype(np.float32)).topk(3).values
            )


def test_batches_that_lpqld_cannot_tell_apart(tmp_path: Path) -> None:
    once = [make_batch(0, batch) for batch in range(3)]
    twice = [*once, *(replace(batch, key=BatchKey(1, batch.key.batch)) for batch in once)]
    (claim,) = exported(write_pool(tmp_path / "pool", twice), tmp_path / "out", "lpqld").claims
    assert "6 of 6 batches begin with the same images" in claim.why


@pytest.mark.parametrize(("side", "most"), [(224, 0), (1023, 0), (3000, 4000)])
def test_half_precision_moves_crops_of_large_images(side: int, most: int) -> None:
    """The programs add two rounded numbers, so sizes from 1024 on can be off by one."""
    rng = np.random.default_rng(0)
    one, zeros = np.full(1, side, np.int32), np.zeros(4000, np.int32)
    table = ImageTable(paths=["a/b.png"], classes=zeros[:1], widths=one, heights=one, digests=[bytes(16)])
    sizes = rng.integers(1, side + 1, (4000, 2))
    corners = (rng.random((4000, 2)) * (side - sizes + 1)).astype(np.int64)
    crops = np.concatenate([corners, sizes], axis=1).astype(np.int32)
    views = ViewBatch(key=BatchKey(0, 0), images=zeros, crops=crops, flips=zeros.astype(np.bool_))
    fractions = (crops / side).astype(np.float32)
    assert moved_crops(fractions, views, table) == 0
    moved = moved_crops(fractions.astype(np.float16), views, table)
    assert (100 < moved < most) if most else moved == 0


@pytest.mark.parametrize("label_format", ["lpld", "lpqld"])
def test_export_resumes(tmp_path: Path, make_pool: Make, label_format: str, reused: list[str]) -> None:
    calls: list[int] = []
    with make_pool("f16", WHOLE) as pool:
        export_pool(pool, tmp_path / "undisturbed", label_format=label_format)
        with pytest.raises(KeyboardInterrupt):
            export_pool(pool, tmp_path / "out", label_format=label_format, progress=interrupt_at(3))
        assert not (tmp_path / "out").exists()
        export_pool(pool, tmp_path / "out", label_format=label_format, progress=lambda d, t: calls.append(d))
        assert calls[0] == 4, "three files were safe"
        assert len(reused) == 1
        assert f"{tmp_path / 'out'}: resumes, 3 of " in reused[0]
        # A kill after the last rename leaves a directory without files.
        (tmp_path / ".out.unfinished").mkdir()
        (tmp_path / ".out.unfinished" / "job.json").write_text("{}")
        export_pool(pool, tmp_path / "out", label_format=label_format)
    assert tree(tmp_path / "out") == tree(tmp_path / "undisturbed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "pool", "undisturbed"]


def test_an_export_is_left_or_replaced_but_never_mixed(tmp_path: Path, make_pool: Make) -> None:
    with make_pool("f16", WHOLE) as pool:
        first = export_pool(pool, tmp_path / "out", label_format="lpld")
        before = (tmp_path / "out").stat().st_ino
        assert export_pool(pool, tmp_path / "out", label_format="lpld") == first
        assert (tmp_path / "out").stat().st_ino == before
        with pytest.raises(PoolConflictError, match="--overwrite"):
            export_pool(pool, tmp_path / "out", label_format="lpqld")
        export_pool(pool, tmp_path / "out", label_format="lpqld", overwrite=True)
        export_pool(pool, tmp_path / "fresh", label_format="lpqld")
        assert tree(tmp_path / "out") == tree(tmp_path / "fresh")
        (tmp_path / "out" / "notes.txt").write_text("mine")
        with pytest.raises(PoolConflictError, match="not a label file"):
            export_pool(pool, tmp_path / "out", label_format="lpld", overwrite=True)


def test_what_is_no_export_is_not_replaced(tmp_path: Path, make_pool: Make) -> None:
    archives = tmp_path / "archives"
    archives.mkdir()
    for name in ("n01440764.tar", "batch_0.tar"):
        with tarfile.open(archives / name, "w") as archive:
            archive.addfile(tarfile.TarInfo("photo.jpg"))
    shutil.copyfile(archives / "batch_0.tar", tmp_path / "backup.tar")
    with make_pool("f16", WHOLE) as pool:
        before = tree(tmp_path)
        with pytest.raises(PoolConflictError, match="already here"):
            export_pool(pool, archives, label_format="lpld")
        with pytest.raises(PoolConflictError, match="not a label file"):
            export_pool(pool, archives, label_format="lpld", overwrite=True)
        with pytest.raises(PoolConflictError, match="not a folder"):
            export_pool(pool, tmp_path / "backup.tar", label_format="lpld", overwrite=True)
        with pytest.raises(PoolWriteError):
            export_pool(pool, tmp_path / "backup.tar" / "below", label_format="lpld")
        with pytest.raises(InvalidArgumentError, match="unknown export format"):
            export_pool(pool, tmp_path / "out", label_format="zip")
    assert {name: tree(tmp_path)[name] for name in before} == before
