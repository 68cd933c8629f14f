from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lpld_core.networks.batchnorm import batchnorm_layers
from lpld_core.recover.optimise import LayerTarget, UnitMoments, unit_losses
from tests.lpld_core.networks import tiny_teacher

FIRST_WEIGHT = 10.0


def plain_losses(
    model: nn.Module, images: Tensor, classes: Tensor, targets: dict[str, tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Both losses of one unit the way the papers write them: one layer after the other, by hand."""
    conv1, bn1, conv2, bn2, fc = (getattr(model, name) for name in ("conv1", "bn1", "conv2", "bn2", "fc"))

    def normalised(values: Tensor, bn: nn.BatchNorm2d) -> Tensor:
        assert bn.running_mean is not None
        assert bn.running_var is not None
        shape = (1, -1, 1, 1)
        centred = (values - bn.running_mean.view(shape)) / torch.sqrt(bn.running_var.view(shape) + bn.eps)
        return bn.weight.view(shape) * centred + bn.bias.view(shape)

    def distance(values: Tensor, name: str) -> Tensor:
        mean = values.mean(dim=(0, 2, 3))
        variance = ((values - mean.view(1, -1, 1, 1)) ** 2).mean(dim=(0, 2, 3))
        wanted_mean, wanted_variance = targets[name]
        return ((mean - wanted_mean) ** 2).sum().sqrt() + ((variance - wanted_variance) ** 2).sum().sqrt()

    first = conv1(images)
    hidden = torch.nn.functional.silu(normalised(first, bn1))
    second = conv2(hidden)
    hidden = torch.nn.functional.silu(normalised(second, bn2))
    logits = fc(hidden.mean(dim=(2, 3)))
    chosen = torch.log_softmax(logits, dim=1)[torch.arange(len(classes)), classes]
    return -chosen.mean(), FIRST_WEIGHT * distance(first, "bn1") + distance(second, "bn2")


@pytest.mark.parametrize("kind", ["class", "global"])
def test_losses_and_gradients_match_a_plain_derivation(kind: str) -> None:
    teacher = tiny_teacher(dtype=torch.float64)
    layers = batchnorm_layers(teacher.model)[:2]
    random = torch.Generator().manual_seed(3)
    sizes = (3, 5, 2)
    unit_of_image = torch.arange(3).repeat_interleave(torch.tensor(sizes))
    images = torch.randn(10, 3, 8, 8, generator=random, dtype=torch.float64, requires_grad=True)
    classes = torch.randint(0, 4, (10,), generator=random)
    if kind == "class":
        rows = {
            layer.name: (
                torch.randn(3, layer.channels, generator=random, dtype=torch.float64),
                torch.rand(3, layer.channels, generator=random, dtype=torch.float64),
            )
            for layer in layers
        }
    else:
        rows = {layer.name: (layer.running_mean[None], layer.running_var[None]) for layer in layers}
    targets = [
        LayerTarget(layer=layer, mean=rows[layer.name][0], variance=rows[layer.name][1]) for layer in layers
    ]

    found = unit_losses(teacher.model, images, classes, unit_of_image, targets)
    for number in range(3):
        mine = unit_of_image == number
        row = number if kind == "class" else 0
        plain_targets = {name: (mean[row], variance[row]) for name, (mean, variance) in rows.items()}
        part = images.detach()[mine].requires_grad_()
        expected = plain_losses(teacher.model, part, classes[mine], plain_targets)
        for name, value, plain in (
            ("cross-entropy", found.cross_entropy[number], expected[0]),
            ("batchnorm", found.batchnorm[number], expected[1]),
        ):
            torch.testing.assert_close(value, plain, msg=f"{name} differs")
            (gradient,) = torch.autograd.grad(value, images, retain_graph=True)
            (plain_gradient,) = torch.autograd.grad(plain, part, retain_graph=True)
            torch.testing.assert_close(gradient[mine], plain_gradient)
            assert not gradient[~mine].any(), "a unit's loss reaches another unit's images"


@settings(deadline=None, max_examples=15)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), shift=st.floats(-3, 3))
def test_unit_moments_have_the_right_gradient(sizes: list[int], shift: float) -> None:
    random = torch.Generator().manual_seed(sum(sizes))
    values = torch.randn(sum(sizes), 2, 3, 2, generator=random, dtype=torch.float64, requires_grad=True)
    counts = torch.tensor(sizes)
    unit_of_image = torch.arange(len(sizes)).repeat_interleave(counts)
    offset = torch.full((2,), shift, dtype=torch.float64)

    def moments(inputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = UnitMoments.apply(inputs, unit_of_image, counts, offset)
        return mean, variance

    mean, variance = moments(values)
    for number, part in enumerate(torch.split(values, sizes)):
        flat = part.permute(1, 0, 2, 3).flatten(1)
        torch.testing.assert_close(mean[number], flat.mean(dim=1))
        torch.testing.assert_close(variance[number], flat.var(dim=1, correction=0))
    assert torch.autograd.gradcheck(moments, (values,))
