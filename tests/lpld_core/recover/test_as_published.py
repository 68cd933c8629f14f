"""Recovery as the papers' programs do it, said again in plain torch, and compared in float64.

One batch, one view for all its images, drawn from the same numbers: torchvision's crop, flip and roll; a
hook per BatchNorm layer; Adam; the clamp. Programs: SRe2L, CDA and LPLD for ImageNet-1K and Tiny-ImageNet.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.transforms import functional

from lpld_core.recover.optimise import GroupOptimiser, draw_noise, draw_view, layer_targets, recover_group
from lpld_core.recover.settings import (
    Group,
    Method,
    PresetName,
    RecoverSettings,
    StatisticsKind,
    method_settings,
)
from lpld_core.squeeze.statistics import ClassStatistics
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.exec.job import run_task
from tests.lpld_core.networks import MEAN, STD, collect_statistics, tiny_teacher

SIDE, STEPS = 16, 3
NAMES = ("ant", "bee", "cat", "dog")
Target = Callable[[str, nn.BatchNorm2d], tuple[Tensor, Tensor]]


def published_distance(model: nn.Module, images: Tensor, target: Target) -> tuple[Tensor, Tensor]:
    """Return logits and the summed distances, the first layer's ten times."""
    distances: list[Tensor] = []

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def compare(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            assert isinstance(module, nn.BatchNorm2d)
            mean, variance = target(name, module)
            rows = inputs[0].permute(1, 0, 2, 3).reshape(inputs[0].shape[1], -1)
            distances.append(
                torch.norm(variance - rows.var(dim=1, unbiased=False), 2)
                + torch.norm(mean - inputs[0].mean([0, 2, 3]), 2)
            )

        return compare

    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    handles = [module.register_forward_hook(hook(name)) for name, module in layers]
    logits = model(images)
    for handle in handles:
        handle.remove()
    return logits, 10 * distances[0] + sum(distances[1:])


def published_run(
    teacher: LoadedTeacher, group: Group, settings: RecoverSettings, target: Target
) -> list[dict[str, Tensor]]:
    """Return losses, gradient and updated pixels of every iteration."""
    (unit,) = group.units
    labels = torch.tensor([label for label, _ in unit.members])
    noise = draw_noise((len(labels), 3, SIDE, SIDE), seed=settings.seed, unit=unit.key)
    images = torch.from_numpy(noise).requires_grad_()
    adam = torch.optim.Adam([images], lr=settings.learning_rate, betas=(0.5, 0.9), eps=1e-8)
    steps = []
    for iteration in range(STEPS):
        adam.param_groups[0]["lr"] = (
            0.5 * (1 + math.cos(math.pi * iteration / STEPS)) * settings.learning_rate
        )
        view = draw_view(settings, unit.key, iteration)
        shown = functional.resized_crop(
            images, view.top, view.left, view.height, view.width, [SIDE, SIDE], antialias=True
        )
        shown = functional.hflip(shown) if view.flip else shown
        shown = torch.roll(shown, shifts=(view.roll_down, view.roll_right), dims=(2, 3))
        adam.zero_grad()
        logits, distance = published_distance(teacher.model, shown, target)
        cross_entropy = nn.functional.cross_entropy(logits, labels)
        (cross_entropy + settings.alpha * distance).backward()  # type: ignore[no-untyped-call]
        adam.step()
        with torch.no_grad():
            for channel, (mean, std) in enumerate(zip(MEAN, STD, strict=True)):
                images[:, channel] = torch.clamp(images[:, channel], -mean / std, (1 - mean) / std)
        assert images.grad is not None
        steps.append(
            {
                "cross-entropy": cross_entropy.detach(),
                "distance": distance.detach(),
                "gradient": images.grad.clone(),
                "pixels": images.detach().clone(),
            }
        )
    return steps


def class_statistics(teacher: LoadedTeacher) -> ClassStatistics:
    random = torch.Generator().manual_seed(5)
    images = torch.randn(24, 3, SIDE, SIDE, generator=random, dtype=torch.float64)
    return collect_statistics(teacher, [(images, torch.arange(24) % 4)], class_names=NAMES)


@pytest.mark.parametrize("preset", ["imagenet1k", "tiny", "imagenet21k"])
@pytest.mark.parametrize(
    ("method", "kind"), [("sre2l", "global"), ("cda", "global"), ("lpld", "class"), ("lpld", "global")]
)
def test_iterations_are_those_of_the_published_programs(
    method: Method, kind: StatisticsKind, preset: PresetName
) -> None:
    teacher = tiny_teacher(dtype=torch.float64, size=(SIDE, SIDE))
    given: dict[str, Any] = {"iterations": STEPS, "class_group": 1, "statistics_kind": kind, "seed": 4}
    settings = method_settings(method, size=(SIDE, SIDE), classes=4, ipc=3, preset=preset, **given)
    assert isinstance(settings, RecoverSettings)
    statistics = class_statistics(teacher)
    group = settings.groups(4)[1]
    rows = {layer.name: layer for layer in statistics.layers}
    label = group.classes[0]

    def target(name: str, module: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
        if kind == "class":
            return rows[name].mean[label].double(), rows[name].variance[label].double()
        assert module.running_mean is not None
        assert module.running_var is not None
        return module.running_mean, module.running_var

    targets = layer_targets(teacher, statistics, kind)
    optimiser = GroupOptimiser(teacher, group, targets, settings)
    published = published_run(teacher, group, settings, target)
    for iteration, expected in enumerate(published):
        losses = optimiser.losses(iteration)
        optimiser.step(losses.total(settings.alpha).sum(), iteration)
        assert optimiser.images.grad is not None
        found = {
            "cross-entropy": losses.cross_entropy.detach()[0],
            "distance": losses.batchnorm.detach()[0],
            "gradient": optimiser.images.grad,
            "pixels": optimiser.images.detach(),
        }
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9, msg=f"{name} {iteration}")
    outcome = run_task(recover_group(teacher, group, targets, settings), lambda _: True)
    assert outcome is not None
    torch.testing.assert_close(outcome.fact.images, published[-1]["pixels"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "preset", "shifts"),
    [
        ("lpld", "imagenet1k", range(33)),
        ("lpld", "imagenet21k", range(33)),
        ("lpld", "tiny", range(-4, 5)),
        ("sre2l", "imagenet1k", range(33)),
        ("sre2l", "tiny", range(-4, 5)),
        ("cda", "imagenet1k", range(33)),
        ("cda", "tiny", range(5)),
    ],
)
def test_rolls_are_those_of_the_published_programs(method: Method, preset: PresetName, shifts: range) -> None:
    settings = method_settings(method, size=(64, 64), classes=4, ipc=1, preset=preset)
    assert isinstance(settings, RecoverSettings)
    drawn = {draw_view(replace(settings, seed=n), (0, 0), 0).roll_down for n in range(600)}
    assert drawn == set(shifts)
