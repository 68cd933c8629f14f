from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity, rbf_kernel
from torch import nn

from lpld_core.analysis import (
    analyse,
    class_similarity,
    extract_features,
    mean_kernel,
    median_bandwidth,
    mmd_squared,
)
from lpld_core.images import RealFolder
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import Teacher
from tests.lpld_core.networks import noisy_folder, tiny_teacher


def test_similarity_is_that_of_all_pairs() -> None:
    features = torch.randn(30, 6, generator=torch.Generator().manual_seed(0)) + 0.5
    labels = torch.tensor([0] * 7 + [1] * 3 + [2] * 20)
    distinct, with_self = [], []
    for label in range(3):
        table = cosine_similarity(features[labels == label].numpy())
        distinct.append(table[~np.eye(len(table), dtype=bool)].mean())
        with_self.append(table.mean())
    found = class_similarity(features, labels)
    assert found.mean == pytest.approx(np.mean(distinct), rel=1e-5)
    assert found.std == pytest.approx(np.std(distinct), rel=1e-4)
    assert found.with_self == pytest.approx(np.mean(with_self), rel=1e-5)
    with pytest.raises(InvalidArgumentError, match="two images of every class"):
        class_similarity(features[:8], labels[:8])


def test_kernel_means_match_scikit_learn() -> None:
    random = torch.Generator().manual_seed(1)
    real, synthetic = torch.randn(1500, 5, generator=random), torch.randn(40, 5, generator=random) + 0.7
    bandwidth = median_bandwidth(real)
    gamma = 1 / (2 * bandwidth**2)
    for first, second in ((real, real), (synthetic, synthetic), (real, synthetic)):
        expected = rbf_kernel(first.double().numpy(), second.double().numpy(), gamma=gamma).mean()
        assert mean_kernel(first, second, bandwidth) == pytest.approx(expected, rel=1e-6)
    assert mmd_squared(real, real, bandwidth) == pytest.approx(0, abs=1e-12)
    near, far = (mmd_squared(real, synthetic - offset, bandwidth) for offset in (0.7, -3.0))
    assert 0 < near < far


def test_bandwidth_is_the_median_distance() -> None:
    features = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    # Distances: 1, 2, 3, 4, 6, 7. torch takes the lower of the two middle ones.
    assert median_bandwidth(features) == 3.0
    with pytest.raises(InvalidArgumentError, match="all the same"):
        median_bandwidth(torch.ones(5, 2))


def test_features_are_what_the_last_layer_takes_in() -> None:
    teacher = tiny_teacher()
    images = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    batches = [(images[:4], torch.arange(4)), (images[4:], torch.tensor([1, 1]))]
    features, labels = extract_features(teacher, batches)
    head = teacher.model.fc
    assert isinstance(head, nn.Linear)
    torch.testing.assert_close(head(features), teacher.model(images))
    assert labels.tolist() == [0, 1, 2, 3, 1, 1]
    headless = LoadedTeacher(
        model=nn.Flatten(), description=Teacher(name="flat"), input_size=(1, 1), classes=3
    )
    with pytest.raises(InvalidArgumentError, match="flat: cannot find this network"):
        extract_features(headless, [])


def test_folders_stand_side_by_side(tmp_path: Path) -> None:
    real = RealFolder.open(noisy_folder(tmp_path / "real", classes=4, images=30))
    near = RealFolder.open(noisy_folder(tmp_path / "near", classes=4, images=5))
    far = RealFolder.open(noisy_folder(tmp_path / "far", classes=4, images=5, seed=9))
    calls: list[tuple[int, int]] = []
    found = analyse(
        tiny_teacher(),
        [("near", near), ("far", far)],
        real,
        real_per_class=10,
        batch_size=7,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert [(f.name, f.images) for f in found.folders] == [("near", 20), ("far", 20), ("real", 40)]
    first, second, last = found.folders
    assert first.mmd_squared is not None
    assert second.mmd_squared is not None
    assert first.mmd_squared < second.mmd_squared
    assert last.mmd_squared is None
    assert calls[-1] == (80, 80)
    assert calls == sorted(calls)
    three = RealFolder.open(noisy_folder(tmp_path / "three", classes=3, images=2))
    with pytest.raises(InvalidArgumentError, match=r"three: .*expected 4 .the teacher's., got 3"):
        analyse(tiny_teacher(), [("three", three)], real)
