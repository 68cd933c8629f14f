"""Folders in the layouts of the authors' programs, imported: nothing may be lost or changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from benchmarks.common.photos import photo_folder
from lpld_labels import ImageTable, PoolReader, ViewBatch
from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.exec.local import LocalExecutor
from lpld_labels.interop.importing import import_labels
from lpld_labels.render.images import scan_image_folder
from tests.lpld_labels.interop.conftest import REFERENCES, Imported, Reference


def batches(source: Reference, pool: PoolReader) -> list[tuple[ViewBatch, list[Any], tuple[int, int]]]:
    """Return (views in the pool, list in the file, key) of every batch."""
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


@pytest.mark.parametrize("name", REFERENCES)
def test_the_format_is_found(imported: Imported, name: str) -> None:
    _, _, report = imported(name)
    assert report.format == REFERENCES[name][1]
    assert not report.holes


@pytest.mark.parametrize("name", REFERENCES)
def test_flips_mixes_and_boxes_are_the_same(imported: Imported, name: str) -> None:
    source, path, _ = imported(name)
    with PoolReader(path) as pool:
        for views, saved, _ in batches(source, pool):
            if saved[1].dtype == torch.bool:
                assert views.flips.tolist() == saved[1].tolist()
            else:
                assert not views.flips.any()
            if saved[2] is None:
                assert views.mix is None
                continue
            assert views.mix is not None
            assert views.mix.partner.tolist() == saved[2].tolist()
            assert views.mix.strength == saved[3]
            box = None if saved[4] is None else [int(side) for side in saved[4]]
            assert (None if views.mix.box is None else list(views.mix.box)) == box


@pytest.mark.parametrize("name", [name for name in REFERENCES if not name.startswith("lpqld")])
def test_every_logit_is_the_same(imported: Imported, name: str) -> None:
    source, path, _ = imported(name)
    with PoolReader(path) as pool:
        assert pool.codec.lossless
        for _, saved, key in batches(source, pool):
            labels = pool.read_labels(key)
            assert labels.dtype == np.float16
            assert labels.tobytes() == saved[5].numpy().tobytes()


def test_top_k_arrives_as_top_k(imported: Imported) -> None:
    source, path, report = imported("lpqld_in1k_k50")
    with PoolReader(path) as pool:
        codec = pool.codec
        assert isinstance(codec, TopKCodec)
        assert (codec.k, codec.value_bits, pool.classes) == (50, 16, 1000)
        for views, saved, key in batches(source, pool):
            payload = pool.read_encoded(key).payload
            found = codec.sparse(payload, rows=views.rows, classes=pool.classes)
            assert found.values.tobytes() == saved[5].numpy().tobytes()
            assert found.indices.tolist() == saved[6].tolist()
            assert found.tail is None
    assert report.pool_bytes < report.source_bytes


@pytest.mark.parametrize("name", REFERENCES)
def test_crops_are_the_pixels_that_pil_cuts_out(imported: Imported, name: str) -> None:
    source, path, _ = imported(name)
    with PoolReader(path) as pool:
        table = pool.images
        for views, saved, _ in batches(source, pool):
            for slot in range(views.rows):
                image = int(views.images[slot])
                cut, picture = replayed_crop(saved[0][slot], table, image)
                top, left, height, width = views.crops[slot].tolist()
                assert np.array_equal(cut, picture[top : top + height, left : left + width])


def replayed_crop(coords: torch.Tensor, table: ImageTable, image: int) -> tuple[Any, Any]:
    """Cut a picture of numbered pixels as the programs replay their crops: floats into PIL."""
    tall, wide = int(table.heights[image]), int(table.widths[image])
    picture = np.arange(tall * wide, dtype=np.int32).reshape(tall, wide)
    i, j = coords[0].item() * tall, coords[1].item() * wide
    h, w = coords[2].item() * tall, coords[3].item() * wide
    return np.asarray(Image.fromarray(picture).crop((j, i, j + w, i + h))), picture


def test_images_are_those_the_program_named(imported: Imported) -> None:
    for name, file in (("lpld_in1k", "epoch"), ("lpld_tiny", "epoch"), ("lpqld_in1k_k50", "batch")):
        source, path, _ = imported(name)
        stored = json.loads((source.labels / f"sampler_indices_{file}.json").read_text())
        with PoolReader(path) as pool:
            ids = [i for key in pool.keys for i in pool.read_views(key).images.tolist()]
        assert ids == [i for key in sorted(stored, key=int) for i in stored[key]]


def test_images_without_ids_come_from_the_sampler(imported: Imported) -> None:
    """The SRe2L and the LPLD folder were drawn with the same seed from the same images."""
    _, without, report = imported("sre2l_mixup")
    _, stored, _ = imported("lpld_in1k")
    with PoolReader(without) as ours, PoolReader(stored) as theirs:
        for key in ours.keys:
            assert np.array_equal(ours.read_views(key).images, theirs.read_views(key).images)
    assert any("PyTorch >= 1.11" in line for line in report.assumed)


def test_cutouts_are_what_the_program_paints(imported: Imported) -> None:
    source, path, _ = imported("lpld_in21k")
    with PoolReader(path) as pool:
        assert (pool.classes, pool.header.augmentation.cutout_fraction) == (10450, 0.5)
        for views, saved, _ in batches(source, pool):
            assert views.cutout is not None
            for slot in range(views.rows):
                y, x, height, width = (round(v.item() * 224) for v in saved[1][slot][:4])
                fill = tuple(int(v) for v in saved[1][slot][4:])
                corners = [max(x - width // 2, 0), max(y - height // 2, 0)]
                ends = [min(x + width // 2, 224), min(y + height // 2, 224)]
                picture = Image.new("RGB", (224, 224))
                ImageDraw.Draw(picture).rectangle([*corners, *ends], fill=fill)
                top, left, bottom, right = views.cutout.boxes[slot].tolist()
                ours = np.zeros((224, 224, 3), np.uint8)
                ours[top:bottom, left:right] = views.cutout.fill[slot]
                assert np.array_equal(ours, np.asarray(picture))


def test_headers_say_what_decoding_says(tmp_path: Path) -> None:
    images = photo_folder(tmp_path, side=64, count=12)
    quick, thorough = (scan_image_folder(images, decode=decode).to_table() for decode in (False, True))
    assert quick.equals(thorough)


def test_epochs_of_a_flat_folder(imported: Imported) -> None:
    _, path, _ = imported("lpqld_in1k_k50")
    with PoolReader(path) as pool:
        assert [tuple(key) for key in pool.keys] == [
            (0, 0),
            (0, 1),
            (0, 2),
            (1, 0),
            (1, 1),
            (2, 0),
            (2, 1),
            (2, 2),
        ]


def test_the_report_says_what_was_assumed(imported: Imported) -> None:
    _, _, report = imported("lpld_tiny")
    assert any("64 x 64" in line for line in report.assumed)
    assert any("Tiny-ImageNet's normalisation" in line for line in report.assumed)
    _, _, report = imported("lpld_in21k")
    assert any("no normalisation" in line for line in report.assumed)
    _, _, report = imported("lpqld_in1k_k50")
    assert any("1000 classes" in line for line in report.assumed)


def test_several_processes_give_the_same_pool(imported: Imported, tmp_path: Path) -> None:
    source, _, report = imported("lpld_in1k")
    calls = []
    again = import_labels(
        source.labels,
        tmp_path / "pool",
        images=source.images,
        executor=LocalExecutor(2),
        progress=lambda *done: calls.append(done),
    )
    assert again.content_digest == report.content_digest
    assert calls[-1] == (12, 12)
