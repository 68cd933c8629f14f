import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lpld_core.networks.batchnorm import batchnorm_layers, image_sums, watched_inputs
from lpld_core.networks.weights import read_weights, save_weights
from lpld_core.squeeze.squeeze import BatchRows, ClassMoments, update_bound
from lpld_core.squeeze.statistics import ClassStatistics
from lpld_labels.errors import InvalidArgumentError, ManifestError
from tests.lpld_core.networks import collect_statistics, tiny_teacher

NAMES = ("ant", "bee", "cat", "dog")
Batch = tuple[Tensor, Tensor]


def data(rows: int = 37, seed: int = 0) -> Batch:
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(rows, 3, 8, 8, generator=random) * 2 + 1
    labels = torch.randint(0, 4, (rows,), generator=random)
    labels[:4] = torch.arange(4)
    return images, labels


def batches(images: Tensor, labels: Tensor, size: int) -> Iterator[Batch]:
    return zip(torch.split(images, size), torch.split(labels, size), strict=True)


def activations(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Inputs of the layers that run, in float64, by the plainest means."""
    seen: dict[str, Tensor] = {}
    handles = [
        getattr(model, name).register_forward_hook(
            lambda module, inputs, output, name=name: seen.__setitem__(name, inputs[0].double())
        )
        for name in ("bn1", "bn2")
    ]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    return seen


def plain_moments(values: Tensor) -> tuple[Tensor, Tensor]:
    flat = values.permute(1, 0, 2, 3).flatten(1)
    return flat.mean(dim=1), flat.var(dim=1, correction=0)


@settings(deadline=None, max_examples=20)
@given(size=st.integers(1, 40), order=st.integers(0, 10**6))
def test_exact_moments_are_those_of_all_images_whatever_the_batches(size: int, order: int) -> None:
    teacher = tiny_teacher()
    images, labels = data()
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(order))
    found = collect_statistics(teacher, batches(images[shuffled], labels[shuffled], size), class_names=NAMES)
    expected = activations(teacher.model, images)
    assert [layer.name for layer in found.layers] == ["bn1", "bn2"]
    assert found.counts.tolist() == torch.bincount(labels).tolist()
    for layer in found.layers:
        for label in range(4):
            mean, variance = plain_moments(expected[layer.name][labels == label])
            torch.testing.assert_close(layer.mean[label], mean.float(), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(layer.variance[label], variance.float(), rtol=1e-5, atol=1e-6)


def test_moving_average_is_the_published_one_in_float64() -> None:
    """The published layer: mask a class, mean and biased variance, (1 - m) old + m new, from 0 and 1."""
    teacher = tiny_teacher(dtype=torch.float64)
    images, labels = data()
    layers = batchnorm_layers(teacher.model)[:2]
    rows = BatchRows(layers)
    moments = ClassMoments(4, rows.shift, 0.1)
    seen = activations(teacher.model, images.double())
    mean = {layer.name: torch.zeros(4, layer.channels, dtype=torch.float64) for layer in layers}
    variance = {layer.name: torch.ones(4, layer.channels, dtype=torch.float64) for layer in layers}
    for start in range(0, len(labels), 6):
        part = slice(start, start + 6)
        with watched_inputs(layers, rows.watch), torch.no_grad():
            teacher.model(images[part].double())
        moments.add(labels[part], *rows.take(len(labels[part])))
        for layer, label in itertools.product(layers, sorted(set(labels[part].tolist()))):
            values = seen[layer.name][part][labels[part] == label]
            for table, now in (
                (mean, values.mean([0, 2, 3])),
                (variance, values.var([0, 2, 3], unbiased=False)),
            ):
                table[layer.name][label] = (1 - 0.1) * table[layer.name][label] + 0.1 * now
    for found, expected in zip(moments.result(), (mean, variance), strict=True):
        joined = torch.cat([expected[layer.name] for layer in layers], dim=1)
        torch.testing.assert_close(found, joined, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_sums_keep_the_variance_where_the_mean_is_large(memory_format: torch.memory_format) -> None:
    values = 1000 + torch.randn(9, 5, 130, 130).contiguous(memory_format=memory_format)
    first, second = image_sums(values, torch.full((5,), 999.5))
    pixels = 130 * 130
    mean = first.double() / pixels
    variance = second.double() / pixels - mean.square()
    exact = values.double().var(dim=(2, 3), correction=0)
    torch.testing.assert_close(variance, exact, rtol=1e-4, atol=0)


def test_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    teacher = tiny_teacher()
    saved = collect_statistics(teacher, batches(*data(), 8), class_names=NAMES, update="ema", momentum=0.2)
    saved.save(tmp_path / "s.safetensors")
    loaded = ClassStatistics.load(tmp_path / "s.safetensors")
    assert (loaded.teacher, loaded.class_names) == (teacher.description, NAMES)
    assert (loaded.update, loaded.momentum) == ("ema", 0.2)
    assert torch.equal(loaded.counts, saved.counts)
    assert loaded.digest() == saved.digest()
    for a, b in zip(loaded.layers, saved.layers, strict=True):
        assert a.name == b.name
        assert torch.equal(a.mean, b.mean)
        assert torch.equal(a.variance, b.variance)
    loaded.check_teacher(teacher)


def test_statistics_of_another_teacher_are_refused() -> None:
    found = collect_statistics(tiny_teacher(), [data()], class_names=NAMES)
    with pytest.raises(InvalidArgumentError, match="statistics are of a different teacher"):
        found.check_teacher(tiny_teacher(seed=1))
    with pytest.raises(InvalidArgumentError, match=r"differ in their number of classes.*expected 5"):
        found.check_teacher(tiny_teacher(classes=5))


def test_wrong_data_is_refused() -> None:
    images, labels = data()
    with pytest.raises(InvalidArgumentError, match=r"expected 4 .the teacher's., got 3"):
        collect_statistics(tiny_teacher(), [(images, labels)], class_names=NAMES[:3])
    with pytest.raises(InvalidArgumentError, match="class 'cat' has no image"):
        collect_statistics(tiny_teacher(), [(images, labels * (labels != 2))], class_names=NAMES)
    with pytest.raises(InvalidArgumentError, match="exact, ema, got median"):
        collect_statistics(tiny_teacher(), [(images, labels)], class_names=NAMES, update="median")  # type: ignore[arg-type]
    images[3, 0, 0, 0] = math.nan
    with pytest.raises(InvalidArgumentError, match="inputs of BatchNorm layer 'bn1' are not finite"):
        collect_statistics(tiny_teacher(), [(images, labels)], class_names=NAMES)


def test_network_without_batchnorm_is_refused() -> None:
    teacher = tiny_teacher(batchnorm=False)
    with pytest.raises(
        InvalidArgumentError, match=r"tests:tiny has no BatchNorm2d layer.*build works without"
    ):
        collect_statistics(teacher, [data()], class_names=NAMES)
    untracked = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False))
    with pytest.raises(InvalidArgumentError, match="'0' does not track statistics"):
        batchnorm_layers(untracked)


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"none\.safetensors: not a statistics file"):
        ClassStatistics.load(tmp_path / "none.safetensors")
    path = tmp_path / "s.safetensors"
    path.write_bytes(b"not safetensors")
    with pytest.raises(InvalidArgumentError, match="not a statistics file"):
        ClassStatistics.load(path)
    found = collect_statistics(tiny_teacher(), [data()], class_names=NAMES)
    found.layers[0].mean[2, 1] = math.inf
    found.save(path)
    with pytest.raises(ManifestError, match=r"'bn1\.mean' is not finite"):
        ClassStatistics.load(path)


def test_bound_is_the_papers_for_imagenet() -> None:
    bound = update_bound(smallest_class=732, images=1_281_167, batch_size=256)
    assert (bound.required, bound.available, bound.one_pass_suffices) == (1356, 5005, True)
    slow = update_bound(smallest_class=732, images=1_281_167, batch_size=256, momentum=0.001)
    assert slow.required == pytest.approx(42300, abs=100)
    small = update_bound(smallest_class=500, images=10_000, batch_size=256)
    assert not small.one_pass_suffices


def test_files_of_the_first_version_are_centre_views_of_one_pass(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    found = collect_statistics(tiny_teacher(), [data()], class_names=NAMES)
    replace(found, views="crop", passes=3).save(path)
    assert (ClassStatistics.load(path).views, ClassStatistics.load(path).passes) == ("crop", 3)
    file = read_weights(path)
    about = {name: value for name, value in file.about.items() if name not in ("views", "passes", "job")}
    save_weights(path, file.tensors, {**about, "version": 1})
    old = ClassStatistics.load(path)
    assert (old.views, old.passes, old.digest()) == ("centre", 1, found.digest())
    save_weights(path, file.tensors, {**file.about, "version": 4})
    with pytest.raises(InvalidArgumentError, match="its version is 4, this program reads up to 3"):
        ClassStatistics.load(path)
