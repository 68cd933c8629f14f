"""One label, one meaning: what loader, training and NumPy make of imported zeros."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lpld_core.train.settings import TrainSettings
from lpld_core.train.student import StudentLoss, train_student
from lpld_labels.codecs.label_semantics import softened
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.interop.importing import import_labels
from lpld_labels.interop.settings import ImportOptions
from lpld_labels.loader import pool_loader
from lpld_labels.pool.reader import PoolReader
from tests.lpld_core.image_folders import NETWORK
from tests.lpld_labels.interop.label_folders import CLASSES, write_images

GREY = (0.5, 0.5, 0.5)
CROPS = 2
KEPT = np.array([[0.75, 0.25, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.5, 0.25, 0.125]], np.float32)
"""In three rows of four the kept classes hold all of the mass; in the last, the others share an eighth."""


def write_fkd_with_zeros(folder: Path, images: Path) -> None:
    rng = np.random.default_rng(0)
    for number, path in enumerate(sorted(images.rglob("*.png"))):
        classes = np.stack([rng.permutation(CLASSES)[:3] for _ in range(CROPS)])
        values = KEPT[[(number + crop) % 4 for crop in range(CROPS)]]
        coords = np.tile(np.array([0.0, 0.0, 1.0, 1.0], np.float32), (CROPS, 1))
        content = [coords, np.zeros(CROPS, bool), np.stack([classes, values], axis=1).astype(np.float32)]
        target = folder / "train" / path.parent.name / f"{path.stem}.tar"
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, target)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "folder")


@pytest.fixture(scope="module")
def pool_path(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fkd")
    write_fkd_with_zeros(folder / "labels", images)
    options = ImportOptions(classes=CLASSES, batch_size=8, mean=GREY, std=GREY)
    import_labels(folder / "labels", folder / "pool", images=images, options=options)
    return folder / "pool"


@pytest.mark.parametrize("temperature", [1.0, 4.0, 20.0])
def test_everyone_softens_imported_zeros_alike(pool_path: Path, images: Path, temperature: float) -> None:
    with PoolReader(pool_path) as pool:
        stored = np.concatenate([pool.read_labels(key, dtype=np.float32) for key in pool.keys])
        assert (stored == 0).any(axis=1).mean() == pytest.approx(0.75)
        powers = stored.astype(np.float64) ** (1 / temperature)
        powers[stored == 0] = 0
        expected = powers / powers.sum(axis=1, keepdims=True)
        read = softened(stored, "probabilities", temperature)
        order: dict[str, Any] = {"sampling": "stored", "batches_per_epoch": len(pool)}
        loaded = torch.cat([b.labels for b in pool_loader(pool, images, temperature=temperature, **order)])
        loss = StudentLoss(TrainSettings(temperature=temperature), label_kind=pool.header.label_kind)
        trained = torch.cat([loss.target(b.labels) for b in pool_loader(pool, images, **order)])
    for found in (read, loaded.numpy(), trained.numpy()):
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-8)
        assert not found[stored == 0].any()
    if temperature == 20:
        assert float(loaded[0].max()) == pytest.approx(0.75**0.05 / (0.75**0.05 + 0.25**0.05))


def test_an_unknown_normalisation_is_refused_unless_given(
    pool_path: Path, images: Path, tmp_path: Path
) -> None:
    manifest = Path(shutil.copytree(pool_path, tmp_path / "pool")) / "pool.json"
    document = json.loads(manifest.read_text())
    document["teachers"][0] |= {"mean": None, "std": None}
    manifest.write_text(json.dumps(document))
    settings = TrainSettings(student=NETWORK, epochs=1)
    with PoolReader(tmp_path / "pool") as pool:
        with pytest.raises(InvalidArgumentError, match="normalisation is not known"):
            train_student(pool, images, tmp_path / "run", settings)
        with pytest.raises(InvalidArgumentError, match="normalisation is not known"):
            pool_loader(pool, images)
        train_student(pool, images, tmp_path / "run", replace(settings, mean=GREY, std=GREY))
