"""Formats of which no original sample is at hand, on folders made from their descriptions; and eras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lpld_labels import PoolReader
from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.errors import InvalidArgumentError, LabelSourceError
from lpld_labels.exec.local import LocalExecutor
from lpld_labels.format.manifest import ENSEMBLE_WORDS
from lpld_labels.interop.importing import detect_format, import_labels
from lpld_labels.interop.layouts import LAYOUTS
from lpld_labels.interop.settings import ImportOptions
from tests.lpld_labels.interop.label_folders import (
    CLASSES,
    IMAGES,
    SIZE,
    batch_list,
    sampler,
    write_epochs,
    write_fkd,
    write_images,
)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images")


def test_gvbsm(tmp_path: Path, images: Path) -> None:
    source = write_epochs(tmp_path / "labels", epochs=2, ids_in_batch=True)
    options = ImportOptions(ensemble="average")
    report = import_labels(source, tmp_path / "pool", images=images, options=options)
    assert report.format == "gvbsm"
    with PoolReader(tmp_path / "pool") as pool:
        assert pool.header.ensemble == ENSEMBLE_WORDS["average"]
        assert len(pool) == 6
        for key in pool.keys:
            saved = torch.load(source / f"epoch_{key.epoch}" / f"batch_{key.batch}.tar", weights_only=False)
            batch = pool.read(key)
            assert batch.images.tolist() == saved[6].tolist()
            assert batch.labels.tobytes() == saved[5].numpy().tobytes()


@pytest.mark.parametrize("half", [False, True])
def test_fkd(tmp_path: Path, images: Path, half: bool) -> None:
    contents = write_fkd(tmp_path / "labels", images, half=half)
    options = ImportOptions(classes=CLASSES, batch_size=8)
    report = import_labels(tmp_path / "labels", tmp_path / "pool", images=images, options=options)
    assert (report.format, report.epochs, report.batches, report.rows) == ("fkd", 5, 15, 100)
    with PoolReader(tmp_path / "pool") as pool:
        assert pool.header.label_kind == "probabilities"
        assert pool.header.augmentation.resize == "pil_bicubic"
        codec = pool.codec
        assert isinstance(codec, TopKCodec)
        seen = set()
        for key in pool.keys:
            views = pool.read_views(key)
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


def test_fkd_in_several_processes(tmp_path: Path, images: Path) -> None:
    write_fkd(tmp_path / "labels", images)
    options = ImportOptions(classes=CLASSES, batch_size=4)
    digests = {
        import_labels(
            tmp_path / "labels",
            tmp_path / f"pool{jobs}",
            images=images,
            options=options,
            executor=LocalExecutor(jobs),
        ).content_digest
        for jobs in (1, 2)
    }
    assert len(digests) == 1


def test_fkd_labels_add_up_to_one(tmp_path: Path, images: Path) -> None:
    write_fkd(tmp_path / "labels", images)
    options = ImportOptions(classes=CLASSES)
    import_labels(tmp_path / "labels", tmp_path / "pool", images=images, options=options)
    with PoolReader(tmp_path / "pool") as pool:
        assert np.allclose(pool.read_labels((0, 0)).sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("mix", ["none", "mixup", "cutmix"])
@pytest.mark.parametrize("old", [False, True])
def test_the_labels_tell_the_era(tmp_path: Path, images: Path, old: bool, mix: str) -> None:
    source = write_epochs(tmp_path / "labels", epochs=3, mix=mix, old=old)
    report = import_labels(source, tmp_path / "pool", images=images)
    draw = sampler(IMAGES, old=old)
    with PoolReader(tmp_path / "pool") as pool:
        for epoch in range(3):
            found = [
                i for key in pool.keys if key.epoch == epoch for i in pool.read_views(key).images.tolist()
            ]
            assert found == draw().tolist()
        lineage = pool.header.lineage[-1]
    assert lineage.parameters["torch_era"] == ("old" if old else "new")
    assert any(("< 1.11" if old else ">= 1.11") in line for line in report.assumed)


def test_an_era_that_is_told_is_taken(tmp_path: Path, images: Path) -> None:
    source = write_epochs(tmp_path / "labels", epochs=2)
    told = import_labels(source, tmp_path / "pool", images=images, options=ImportOptions(torch_era="old"))
    assert any("as given" in line for line in told.assumed)
    assert any("do not support" in line for line in told.odd)


def test_labels_of_another_seed_are_refused(tmp_path: Path, images: Path) -> None:
    source = write_epochs(tmp_path / "labels", epochs=2)
    with pytest.raises(LabelSourceError, match=r"no known order of image ids fits.*--sampler-seed"):
        import_labels(source, tmp_path / "pool", images=images, options=ImportOptions(sampler_seed=7))
    assert not (tmp_path / "pool" / "pool.json").exists()


def test_one_epoch_cannot_tell_the_era(tmp_path: Path, images: Path) -> None:
    source = write_epochs(tmp_path / "labels", epochs=1)
    report = import_labels(source, tmp_path / "pool", images=images)
    assert any("too small to tell" in line for line in report.assumed)


def test_single_precision_labels_stay_single(tmp_path: Path, images: Path) -> None:
    source = write_epochs(tmp_path / "labels", epochs=1, ids_file=True)
    saved = {}
    for file in sorted(source.rglob("*.tar")):
        content = torch.load(file, weights_only=False)
        content[5] = content[5].float() / 3
        torch.save(content, file)
        saved[file.stem] = content[5].numpy()
    report = import_labels(source, tmp_path / "pool", images=images)
    assert report.codec == "f32"
    with PoolReader(tmp_path / "pool") as pool:
        for key in pool.keys:
            assert pool.read_labels(key).tobytes() == saved[f"batch_{key.batch}"].tobytes()


def test_a_flat_folder_with_whole_rows(tmp_path: Path, images: Path) -> None:
    """LPQLD without quantisation: the flat layout, float16 crops, dense labels."""
    folder = tmp_path / "labels"
    folder.mkdir()
    rng = np.random.default_rng(0)
    ids = [np.arange(8), np.arange(8, 16), np.arange(4, 12)]
    for number, part in enumerate(ids):
        content = batch_list(part, rng)
        content[0] = content[0].half()
        torch.save(content, folder / f"batch_{number}.tar")
    text = ", ".join(f'"{n}": {part.tolist()}' for n, part in enumerate(ids))
    (folder / "sampler_indices_batch.json").write_text(f"{{{text}}}")
    report = import_labels(folder, tmp_path / "pool", images=images)
    assert (report.format, report.codec, report.epochs) == ("lpqld", "f16", 2)


def test_every_format_has_a_name_and_a_summary() -> None:
    assert list(LAYOUTS) == ["lpld", "sre2l", "lpqld", "gvbsm", "fkd"]
    assert all(layout.summary for layout in LAYOUTS.values())


def test_unknown_formats_and_folders(tmp_path: Path) -> None:
    with pytest.raises(LabelSourceError, match="does not exist"):
        detect_format(tmp_path / "nowhere")
    (tmp_path / "readme.txt").touch()
    with pytest.raises(LabelSourceError, match=r"no label files of a known layout.*readme\.txt"):
        detect_format(tmp_path)
    with pytest.raises(InvalidArgumentError, match="unknown label format"):
        detect_format(tmp_path, "zip")


def test_a_format_that_does_not_fit(tmp_path: Path, images: Path) -> None:
    source = write_epochs(tmp_path / "labels", epochs=1)
    for name, message in [
        ("lpld", "image ids are missing"),
        ("lpqld", "no label files of this layout"),
        ("fkd", "no labels by image"),
    ]:
        with pytest.raises(LabelSourceError, match=message):
            import_labels(source, tmp_path / "pool", images=images, label_format=name)


@pytest.mark.parametrize("quantised", [False, True])
def test_randaugment_lists_are_named(tmp_path: Path, images: Path, quantised: bool) -> None:
    """Seven items with whole rows, eight with top-k labels."""
    source = write_epochs(tmp_path / "labels", epochs=1)
    content: list[Any] = torch.load(source / "epoch_0" / "batch_0.tar", weights_only=False)
    operations = [[torch.zeros(8, dtype=torch.int64), torch.zeros(8).half(), torch.zeros(8).half()]] * 2
    for file in sorted(source.rglob("*.tar")):
        more = [torch.zeros(8, 5, dtype=torch.int16)] if quantised else []
        torch.save([*content[:2], operations, *content[2:], *more], file)
    with pytest.raises(LabelSourceError, match=r"RandAugment.*2 operations.*half precision"):
        import_labels(source, tmp_path / "pool", images=images)
