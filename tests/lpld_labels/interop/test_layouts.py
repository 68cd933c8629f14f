"""Folders in every layout, imported: nothing is lost or changed; what a folder leaves open is asked for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.common.photos import photo_folder
from lpld_labels import ImageTable, PoolReader, ViewBatch
from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.errors import ImageMismatchError, InvalidArgumentError, LabelSourceError
from lpld_labels.exec.local import LocalExecutor
from lpld_labels.format.manifest import ENSEMBLE_WORDS
from lpld_labels.interop.importing import detect_format, import_labels
from lpld_labels.interop.layouts import CIFAR, IMAGENET, LAYOUTS, TINY, Normalisation
from lpld_labels.interop.pixels import cutouts_in_pixels
from lpld_labels.interop.settings import ImportOptions
from lpld_labels.render.images import scan_image_folder
from tests.lpld_labels.interop.conftest import REFERENCES, Imported, Reference
from tests.lpld_labels.interop.label_folders import (
    CLASSES,
    IMAGES,
    SIZE,
    sampler,
    write_epochs,
    write_fkd,
    write_flat,
    write_images,
)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images")


def batches(source: Reference, pool: PoolReader) -> list[tuple[ViewBatch, list[Any], tuple[int, int]]]:
    labels = source.labels
    if (labels / "epoch_0").is_dir():
        files = [labels / f"epoch_{key.epoch}" / f"batch_{key.batch}.tar" for key in pool.keys]
    else:
        files = [labels / f"batch_{number}.tar" for number in range(len(pool))]
    assert len(files) == len(list(labels.rglob("*.tar")))
    return [
        (pool.read_views(key), torch.load(file, weights_only=False), key)
        for key, file in zip(pool.keys, files, strict=True)
    ]


def replayed_crop(coords: torch.Tensor, table: ImageTable, image: int) -> tuple[Any, Any]:
    """Cut a picture of numbered pixels as the programs replay their crops: floats into PIL."""
    tall, wide = int(table.heights[image]), int(table.widths[image])
    picture = np.arange(tall * wide, dtype=np.int32).reshape(tall, wide)
    i, j = coords[0].item() * tall, coords[1].item() * wide
    h, w = coords[2].item() * tall, coords[3].item() * wide
    return np.asarray(Image.fromarray(picture).crop((j, i, j + w, i + h))), picture


@pytest.mark.parametrize("name", REFERENCES)
def test_crops_flips_mixes_and_logits_are_those_of_the_files(imported: Imported, name: str) -> None:
    source, path, report = imported(name)
    assert (report.format, report.holes) == (REFERENCES[name][1], ())
    with PoolReader(path) as pool:
        for views, saved, key in batches(source, pool):
            for slot, image in enumerate(views.images.tolist()):
                cut, picture = replayed_crop(saved[0][slot], pool.images, image)
                top, left, height, width = views.crops[slot].tolist()
                assert np.array_equal(cut, picture[top : top + height, left : left + width])
            flips = saved[1] if saved[1].dtype == torch.bool else torch.zeros(views.rows).bool()
            assert views.flips.tolist() == flips.tolist()
            assert (views.mix is None) == (saved[2] is None)
            if views.mix is not None:
                assert views.mix.partner.tolist() == saved[2].tolist()
                assert views.mix.strength == saved[3]
                box = None if saved[4] is None else [int(side) for side in saved[4]]
                assert (None if views.mix.box is None else list(views.mix.box)) == box
            fraction = pool.header.augmentation.cutout_fraction
            assert fraction == (0.5 if name == "lpld_in21k" else None)
            if fraction:
                assert views.cutout is not None
                expected = cutouts_in_pixels(saved[1].numpy(), 224, where="")
                assert np.array_equal(views.cutout.boxes, expected.boxes)
                assert np.array_equal(views.cutout.fill, expected.fill)
            if report.format != "lpqld":
                assert pool.codec.lossless
                labels = pool.read_labels(key)
                assert labels.dtype == np.float16
                assert labels.tobytes() == saved[5].numpy().tobytes()


def test_top_k_arrives_as_top_k_in_the_epochs_of_its_batches(imported: Imported) -> None:
    source, path, report = imported("lpqld_in1k_k50")
    with PoolReader(path) as pool:
        assert list(pool.keys) == [(e, b) for e in range(3) for b in range(3) if (e, b) != (1, 2)]
        codec = pool.codec
        assert isinstance(codec, TopKCodec)
        assert (codec.k, codec.value_bits, pool.classes) == (50, 16, 1000)
        for views, saved, key in batches(source, pool):
            found = codec.sparse(pool.read_encoded(key).payload, rows=views.rows, classes=pool.classes)
            assert found.values.tobytes() == saved[5].numpy().tobytes()
            assert found.indices.tolist() == saved[6].tolist()
            assert found.tail is None
    assert report.pool_bytes < report.source_bytes


def test_images_are_those_the_program_named_or_its_sampler_drew(imported: Imported) -> None:
    for name, file in (("lpld_in1k", "epoch"), ("lpld_tiny", "epoch"), ("lpqld_in1k_k50", "batch")):
        source, path, _ = imported(name)
        stored = json.loads((source.labels / f"sampler_indices_{file}.json").read_text())
        with PoolReader(path) as pool:
            ids = [i for key in pool.keys for i in pool.read_views(key).images.tolist()]
        assert ids == [i for key in sorted(stored, key=int) for i in stored[key]]
    # The SRe2L and the LPLD folder were drawn with the same seed from the same images.
    _, without, report = imported("sre2l_mixup")
    with PoolReader(without) as ours, PoolReader(imported("lpld_in1k")[1]) as theirs:
        for key in ours.keys:
            assert np.array_equal(ours.read_views(key).images, theirs.read_views(key).images)
    assert any("PyTorch >= 1.11" in line for line in report.assumed)


def test_the_report_says_what_was_assumed(imported: Imported) -> None:
    for name, assumed in (
        ("lpld_tiny", ["64 x 64", "Tiny-ImageNet's normalisation"]),
        ("lpld_in21k", ["no normalisation"]),
        ("lpqld_in1k_k50", ["1000 classes"]),
    ):
        text = " ".join(imported(name)[2].assumed)
        assert all(words in text for words in assumed)


def test_headers_say_what_decoding_says(tmp_path: Path) -> None:
    images = photo_folder(tmp_path, side=64, count=12)
    quick, thorough = (scan_image_folder(images, decode=decode).to_table() for decode in (False, True))
    assert quick.equals(thorough)


@pytest.mark.parametrize(("old", "mix"), [(False, "none"), (False, "mixup"), (True, "cutmix")])
def test_the_labels_tell_the_era(tmp_path: Path, images: Path, old: bool, mix: str) -> None:
    source = write_epochs(tmp_path / "labels", epochs=3, mix=mix, old=old)
    report = import_labels(source, tmp_path / "pool", images=images)
    draw = sampler(IMAGES, old=old)
    with PoolReader(tmp_path / "pool") as pool:
        found = [image for key in pool.keys for image in pool.read_views(key).images.tolist()]
        assert found == np.concatenate([draw() for _ in range(3)]).tolist()
        assert pool.header.lineage[-1].parameters["torch_era"] == ("old" if old else "new")
    assert any(("< 1.11" if old else ">= 1.11") in line for line in report.assumed)


def test_an_era_that_is_given_is_taken_and_another_seed_refused(tmp_path: Path, images: Path) -> None:
    source = write_epochs(tmp_path / "labels", epochs=2)
    with pytest.raises(LabelSourceError, match=r"no known order of image ids fits.*--sampler-seed"):
        import_labels(source, tmp_path / "pool", images=images, options=ImportOptions(sampler_seed=7))
    assert not (tmp_path / "pool" / "pool.json").exists()
    told = import_labels(source, tmp_path / "pool", images=images, options=ImportOptions(torch_era="old"))
    assert any("as given" in line for line in told.assumed)
    assert any("do not support" in line for line in told.odd)
    short = write_epochs(tmp_path / "short", epochs=1)
    report = import_labels(short, tmp_path / "other", images=images)
    assert any("too small to tell" in line for line in report.assumed)


@pytest.mark.parametrize(
    ("classes", "side", "normalisation"), [(100, 32, CIFAR), (10, 32, CIFAR), (200, 64, IMAGENET)]
)
def test_branches_of_gvbsm(tmp_path: Path, classes: int, side: int, normalisation: Normalisation) -> None:
    images = write_images(tmp_path / "images", size=side)
    mix = "mixup" if classes == 100 else "cutmix"
    source = write_epochs(
        tmp_path / "labels", epochs=1, ids_in_batch=True, classes=classes, size=side, mix=mix
    )
    report = import_labels(source, tmp_path / "pool", images=images)
    assert report.format == "gvbsm"
    with PoolReader(tmp_path / "pool") as pool:
        (teacher,) = pool.header.teachers
        assert pool.header.ensemble == ENSEMBLE_WORDS["average"]
        for key in pool.keys:
            saved = torch.load(source / f"epoch_{key.epoch}" / f"batch_{key.batch}.tar", weights_only=False)
            assert pool.read_views(key).images.tolist() == saved[6].tolist()
            assert pool.read_labels(key).tobytes() == saved[5].numpy().tobytes()
    assert (teacher.mean, teacher.std) == (normalisation.mean, normalisation.std)
    assert any("G-VBSM's branch" in line and "--ensemble" in line for line in report.assumed)
    assert any("before MixUp" in line for line in report.odd) == (mix == "mixup")


@pytest.mark.parametrize(("classes", "side"), [(100, 64), (1000, 32), (20, 32)])
def test_gvbsm_of_no_published_branch_is_asked_about(tmp_path: Path, classes: int, side: int) -> None:
    images = write_images(tmp_path / "images", size=side)
    source = write_epochs(tmp_path / "labels", epochs=1, ids_in_batch=True, classes=classes, size=side)
    with pytest.raises(LabelSourceError, match=r"several teachers.*--ensemble average"):
        import_labels(source, tmp_path / "pool", images=images)
    options = ImportOptions(ensemble="norm-scaled", teachers=("a", "b"), mean=(0.5,) * 3, std=(0.2,) * 3)
    import_labels(source, tmp_path / "told", images=images, options=options)
    with PoolReader(tmp_path / "told") as pool:
        assert pool.header.ensemble == ENSEMBLE_WORDS["norm-scaled"]
        assert [(t.name, t.mean) for t in pool.header.teachers] == [("a", (0.5,) * 3), ("b", (0.5,) * 3)]


@pytest.mark.parametrize(
    ("ids_file", "classes", "mean"), [(True, 200, TINY.mean), (False, 200, None), (True, CLASSES, None)]
)
def test_tiny_imagenets_normalisation(tmp_path: Path, ids_file: bool, classes: int, mean: object) -> None:
    images = write_images(tmp_path / "images", size=64)
    source = write_epochs(tmp_path / "labels", epochs=1, ids_file=ids_file, classes=classes, size=64)
    report = import_labels(source, tmp_path / "pool", images=images)
    with PoolReader(tmp_path / "pool") as pool:
        assert pool.header.teachers[0].mean == mean
    unknown = any("normalisation is not known" in line and "--mean" in line for line in report.odd)
    assert unknown == (mean is None)


def test_single_precision_labels_stay_single(tmp_path: Path, images: Path) -> None:
    source = write_epochs(tmp_path / "labels", epochs=1, ids_file=True)
    saved = {}
    for file in sorted(source.rglob("*.tar")):
        content = torch.load(file, weights_only=False)
        content[5] = content[5].float() / 3
        torch.save(content, file)
        saved[file.stem] = content[5].numpy().tobytes()
    assert import_labels(source, tmp_path / "pool", images=images).codec == "f32"
    with PoolReader(tmp_path / "pool") as pool:
        assert {f"batch_{key.batch}": pool.read_labels(key).tobytes() for key in pool.keys} == saved


def test_a_flat_folder_with_whole_rows(tmp_path: Path, images: Path) -> None:
    ids = [np.arange(8), np.arange(8, 16), np.arange(4, 12)]
    write_flat(tmp_path / "labels", ids, kept=None, classes=CLASSES, size=SIZE)
    report = import_labels(tmp_path / "labels", tmp_path / "pool", images=images)
    assert (report.format, report.codec, report.epochs) == ("lpqld", "f16", 2)


def test_lpqld_makes_views_of_224_pixels_and_labels_without_a_tail(tmp_path: Path) -> None:
    """Its trainer softens the k values alone and gives all other classes probability 0 (MR-k)."""
    images = write_images(tmp_path / "images", size=64)
    ids = [np.arange(8), np.arange(8, 16)]
    saved = write_flat(tmp_path / "labels", ids, kept=10, classes=200, size=64)
    options = ImportOptions(classes=200, allow_extra_images=True)
    report = import_labels(tmp_path / "labels", tmp_path / "pool", images=images, options=options)
    assert any("as LPQLD's program" in line for line in report.assumed)
    with PoolReader(tmp_path / "pool") as pool:
        assert pool.header.augmentation.output_height == 224
        for (*_, values, classes), key in zip(saved, pool.keys, strict=True):
            theirs = torch.zeros(8, 200).scatter_(1, classes.long(), (values.float() / 20).softmax(1))
            ours = (torch.from_numpy(pool.read_labels(key, dtype=np.float32).copy()) / 20).softmax(1)
            assert torch.equal(ours > 0, theirs > 0)
            torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("quantised", [False, True])
def test_randaugment_lists_are_named(tmp_path: Path, images: Path, quantised: bool) -> None:
    source = write_epochs(tmp_path / "labels", epochs=1)
    content: list[Any] = torch.load(source / "epoch_0" / "batch_0.tar", weights_only=False)
    operations = [[torch.zeros(8, dtype=torch.int64), torch.zeros(8).half(), torch.zeros(8).half()]] * 2
    more = [torch.zeros(8, 5, dtype=torch.int16)] if quantised else []
    for file in sorted(source.rglob("*.tar")):
        torch.save([*content[:2], operations, *content[2:], *more], file)
    with pytest.raises(LabelSourceError, match=r"RandAugment.*2 operations.*half precision"):
        import_labels(source, tmp_path / "pool", images=images)


@pytest.mark.parametrize("half", [False, True])
def test_fkd(tmp_path: Path, images: Path, half: bool) -> None:
    contents = write_fkd(tmp_path / "labels", images, half=half)
    options = ImportOptions(classes=CLASSES, batch_size=8)
    report, again = (
        import_labels(
            tmp_path / "labels", tmp_path / name, images=images, options=options, executor=LocalExecutor(jobs)
        )
        for name, jobs in (("pool", 1), ("again", 2))
    )
    assert again.content_digest == report.content_digest
    assert (report.format, report.epochs, report.batches, report.rows) == ("fkd", 5, 15, 100)
    with PoolReader(tmp_path / "pool") as pool:
        assert pool.header.label_kind == "probabilities"
        assert pool.header.augmentation.resize == "pil_bicubic"
        codec = pool.codec
        assert isinstance(codec, TopKCodec)
        seen = set()
        for key in pool.keys:
            views = pool.read_views(key)
            assert np.allclose(pool.read_labels(key).sum(axis=1), 1, atol=1e-5 if not half else 1e-2)
            sparse = codec.sparse(pool.read_encoded(key).payload, rows=views.rows, classes=CLASSES)
            assert sparse.tail is not None
            for slot, image in enumerate(views.images.tolist()):
                coords, flips, pairs = contents[pool.images.paths[image].removesuffix(".png")]
                seen.add((key.epoch, image))
                assert views.crops[slot].tolist() == np.rint(coords[key.epoch].astype(float) * SIZE).tolist()
                assert views.flips[slot] == flips[key.epoch]
                assert sparse.indices[slot].tolist() == pairs[key.epoch, 0].tolist()
                assert sparse.values[slot].tolist() == pairs[key.epoch, 1].tolist()
                missing = max(0, 1 - pairs[key.epoch, 1].astype(float).sum()) / (CLASSES - 3)
                assert sparse.tail[slot] == pytest.approx(missing, abs=1e-6)
        assert len(seen) == 5 * IMAGES


def test_fkd_below_its_save_path(tmp_path: Path, images: Path) -> None:
    write_fkd(tmp_path / "save" / "imagenet", images)
    options = ImportOptions(classes=CLASSES)
    report = import_labels(tmp_path / "save", tmp_path / "pool", images=images, options=options)
    inner = import_labels(tmp_path / "save" / "imagenet", tmp_path / "inner", images=images, options=options)
    assert report.content_digest == inner.content_digest
    write_fkd(tmp_path / "save" / "other", images)
    with pytest.raises(LabelSourceError, match=r"several data sets.*imagenet, other"):
        import_labels(tmp_path / "save", tmp_path / "again", images=images, options=options)


@pytest.mark.parametrize(
    ("half", "numbers", "classes", "message"),
    [
        (False, [0, 1, 2], None, "give --classes"),  # nor do 5 image folders say how many there are
        (True, [2050, 4000, 6000], 10450, "half precision"),
    ],
)
def test_class_numbers_that_fkd_leaves_open(
    tmp_path: Path, images: Path, half: bool, numbers: list[int], classes: int | None, message: str
) -> None:
    write_fkd(tmp_path / "labels", images, half=half)
    for file in (tmp_path / "labels").rglob("*.tar"):
        content = torch.load(file, weights_only=False)
        content[2][:, 0] = numbers
        torch.save(content, file)
    options = ImportOptions(classes=classes)
    with pytest.raises((LabelSourceError, ImageMismatchError), match=message):
        import_labels(tmp_path / "labels", tmp_path / "pool", images=images, options=options)


def test_unknown_formats_and_folders_are_refused(tmp_path: Path, images: Path) -> None:
    assert list(LAYOUTS) == ["lpld", "sre2l", "lpqld", "gvbsm", "edc", "wmdd", "hald", "fkd"]
    assert all(layout.summary for layout in LAYOUTS.values())
    with pytest.raises(LabelSourceError, match="does not exist"):
        detect_format(tmp_path / "nowhere")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "readme.txt").touch()
    with pytest.raises(LabelSourceError, match=r"no label files of a known layout.*readme\.txt"):
        detect_format(tmp_path / "text")
    with pytest.raises(InvalidArgumentError, match="unknown label format"):
        detect_format(tmp_path, "zip")
    source = write_epochs(tmp_path / "labels", epochs=1)
    for name, message in [
        ("lpld", "image ids are missing"),
        ("lpqld", "no label files of this layout"),
        ("fkd", "no FKD label files"),
    ]:
        with pytest.raises(LabelSourceError, match=message):
            import_labels(source, tmp_path / "pool", images=images, label_format=name)
