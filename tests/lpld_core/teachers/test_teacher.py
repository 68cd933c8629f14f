import io
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from lpld_core.networks.models import IMAGENET_MEAN, SmallResNet, network_source, seeded
from lpld_core.networks.weights import read_weights, save_weights, weights_digest
from lpld_core.teachers.teacher import load_teacher
from lpld_labels.errors import InvalidArgumentError

SMALL = "small-resnet10:width=8,stem_stride=2"


@pytest.fixture
def model() -> SmallResNet:
    with seeded(3):
        return SmallResNet(classes=5, depth=10, width=8, stem_stride=2)


def three_classes() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))


def not_a_classifier() -> nn.Module:
    return nn.Conv2d(3, 4, 1)


def not_a_network() -> str:
    return "resnet18"


def test_a_network_of_one_channel_sees_the_mean_of_the_colours() -> None:
    network = network_source("small-resnet10:width=4,channels=1").build(3).module.eval()
    images = torch.rand(2, 3, 16, 16)
    grey = images.mean(dim=1, keepdim=True).expand(2, 3, 16, 16)
    with torch.inference_mode():
        assert torch.allclose(network(images), network(grey), atol=1e-5)
        assert not torch.allclose(network(images), network(images.flip(2)), atol=1e-3)


def test_the_tiny_imagenet_resnet_takes_torchvision_checkpoints() -> None:
    common = torchvision.models.resnet18(num_classes=200)
    common.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    common.maxpool = nn.Identity()
    small = SmallResNet(classes=20, depth=10, width=32, stem_stride=2)
    assert sum(p.numel() for p in small.parameters()) == pytest.approx(1.23e6, rel=0.01)
    ours = SmallResNet(classes=200)
    ours.load_state_dict(common.state_dict())
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours.eval()(images), common.eval()(images))


def test_a_teacher_is_frozen_and_described(tmp_path: Path, model: SmallResNet) -> None:
    preprocessing = {"input_size": [32, 24], "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    save_weights(tmp_path / "w.safetensors", model.state_dict(), {"preprocessing": preprocessing})
    teacher = load_teacher(SMALL, weights=tmp_path / "w.safetensors")
    assert not teacher.model.training
    assert not any(p.requires_grad for p in teacher.model.parameters())
    assert (teacher.classes, teacher.input_size) == (5, (32, 24))
    assert teacher.description.name == SMALL
    assert teacher.description.weights_digest == weights_digest(model)
    assert (teacher.mean, teacher.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    other = load_teacher(SMALL, weights=tmp_path / "w.safetensors", mean=(0, 0, 0), input_size=(16, 16))
    assert (other.mean, other.input_size) == ((0, 0, 0), (16, 16))


@pytest.mark.parametrize(("wrapper", "prefix"), [(None, "module."), ("state_dict", ""), ("model", "")])
def test_torch_checkpoints_load(tmp_path: Path, model: SmallResNet, wrapper: str | None, prefix: str) -> None:
    tensors = OrderedDict((prefix + name, value) for name, value in model.state_dict().items())
    torch.save(tensors if wrapper is None else {wrapper: tensors, "epoch": 3}, tmp_path / "w.pth")
    teacher = load_teacher(SMALL, weights=tmp_path / "w.pth")
    assert teacher.description.weights_digest == weights_digest(model)


def test_the_digest_is_of_the_weights_alone(model: SmallResNet) -> None:
    before = weights_digest(model)
    model.conv1.to(memory_format=torch.channels_last)
    model.bn1.num_batches_tracked = torch.tensor(7)
    assert weights_digest(model) == before
    with torch.no_grad():
        model.bn1.weight[0] += 1e-6
    assert weights_digest(model) != before


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (sys.exit, (3,))


def saved(content: object) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


NOT_WEIGHTS: dict[str, Callable[[], bytes]] = {
    "text": lambda: b"not weights",
    "nothing": lambda: b"",
    "code": lambda: saved({"state_dict": Evil()}),
    "plain pickle": lambda: pickle.dumps(Evil()),
    "numbers": lambda: saved({"accuracy": 0.7}),
    "half a file": lambda: saved(SmallResNet(classes=3, depth=10, width=8).state_dict())[:5000],
}


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("name", NOT_WEIGHTS)
def test_files_that_are_not_weights_are_refused(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(NOT_WEIGHTS[name]())
    with pytest.raises(InvalidArgumentError, match="not a weights file") as caught:
        read_weights(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    # What torch advises is to turn off what protects.
    for advice in ("weights_only", "can still be loaded", "trust"):
        assert advice not in str(caught.value)
    assert ("it refers to sys.exit, " in str(caught.value)) == ((name, suffix) == ("code", ".pth"))


def test_a_safetensors_file_may_have_any_name(tmp_path: Path, model: SmallResNet) -> None:
    save_weights(tmp_path / "w.st", model.state_dict(), {"network": "x"})
    assert read_weights(tmp_path / "w.st").about == {"network": "x"}


def test_weights_of_another_network_are_named(tmp_path: Path, model: SmallResNet) -> None:
    save_weights(tmp_path / "w.safetensors", model.state_dict(), {})
    with pytest.raises(InvalidArgumentError, match="a different architecture"):
        load_teacher("small-resnet18:width=8", weights=tmp_path / "w.safetensors")
    with pytest.raises(InvalidArgumentError, match="wrong shape"):
        load_teacher("small-resnet10:width=9", weights=tmp_path / "w.safetensors")
    with pytest.raises(InvalidArgumentError, match="no such weights file"):
        load_teacher(SMALL, weights=tmp_path / "absent.pth")
    with pytest.raises(InvalidArgumentError, match=r"expected 4 classes, got 5"):
        load_teacher(SMALL, weights=tmp_path / "w.safetensors", classes=4)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "shufflenet_v2_x0_5", "squeezenet1_1", SMALL])
def test_the_class_count_is_read_from_the_weights(name: str) -> None:
    source = network_source(name)
    assert source.classes_of(source.build(7).module.state_dict()) == 7


def test_timm_models_load() -> None:
    pytest.importorskip("timm")
    teacher = load_teacher("timm:resnet10t", weights="random", classes=6)
    assert teacher.classes == 6
    assert teacher.input_size == (176, 176)
    with pytest.raises(InvalidArgumentError, match="timm has no such model"):
        load_teacher("timm:no_such_model")


def test_factories_load_and_their_faults_are_named() -> None:
    here = "tests.lpld_core.teachers.test_teacher"
    expects: dict[str, Any] = {"input_size": (9, 9), "mean": IMAGENET_MEAN, "std": (1, 1, 1)}
    with pytest.raises(InvalidArgumentError, match="returns random weights, and no weights file is given"):
        load_teacher(f"{here}:three_classes", **expects)
    expects["weights"] = "random"
    teacher = load_teacher(f"{here}:three_classes", **expects)
    assert (teacher.classes, teacher.input_size, teacher.mean) == (3, (9, 9), IMAGENET_MEAN)
    for name, problem in {
        f"{here}:not_a_classifier": "not a classifier",
        f"{here}:not_a_network": "did not return a network",
        f"{here}:absent": "cannot import",
        "no_such_module_at_all:net": "cannot import",
        f"{here}:SMALL": "not callable",
    }.items():
        with pytest.raises(InvalidArgumentError, match=problem):
            load_teacher(name, **expects)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("resnet81", "unknown network"),
        ("small-resnet11", "invalid options of a small ResNet"),
        ("small-resnet10:depth=3", "invalid option in a network name"),
        ("small-resnet10:width=wide", "invalid option in a network name"),
        ("small-resnet10:stem_stride=3", "invalid options of a small ResNet"),
        ("small-resnet10:channels=2", "invalid options of a small ResNet"),
        (SMALL, "no published weights"),
    ],
)
def test_wrong_names_are_refused(name: str, problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        load_teacher(name, classes=3) if problem == "no published weights" else load_teacher(
            name, weights="random", classes=3
        )


@pytest.mark.parametrize("changes", [{"mean": (0.5, 0.5)}, {"std": (0.5, 0.5, 0.0)}])
def test_wrong_normalisation_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="is wrong"):
        load_teacher(SMALL, weights="random", classes=3, **changes)
