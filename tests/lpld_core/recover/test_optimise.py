from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpld_core.recover.optimise import RecoveredGroup, layer_targets, recover_group
from lpld_core.recover.settings import (
    RECOVERY_PRESETS,
    RdedSettings,
    RecoverSettings,
    class_units,
    fitting_group,
    grouped,
    method_settings,
    mixed_units,
)
from lpld_core.settings import Part
from lpld_core.squeeze.statistics import ClassStatistics
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.errors import ComputationError, InvalidArgumentError
from lpld_labels.exec.job import run_task
from tests.lpld_core.networks import MEAN, STD, collect_statistics, tiny_teacher

NAMES = ("ant", "bee", "cat", "dog")


def make_settings(**changes: object) -> RecoverSettings:
    base = RecoverSettings(
        method="lpld", ipc=3, iterations=10, learning_rate=0.1, alpha=0.05, roll=2, size=(8, 8), class_group=2
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def class_statistics(teacher: LoadedTeacher) -> ClassStatistics:
    random = torch.Generator().manual_seed(5)
    dtype = next(teacher.model.parameters()).dtype
    images = torch.randn(24, 3, 8, 8, generator=random, dtype=torch.float64).to(dtype)
    return collect_statistics(teacher, [(images, torch.arange(24) % 4)], class_names=NAMES)


def recovered(*arguments: Any) -> RecoveredGroup:
    outcome = run_task(recover_group(*arguments), lambda _: True)
    assert outcome is not None
    made: RecoveredGroup = outcome.fact
    return made


def recover_all(teacher: LoadedTeacher, settings: RecoverSettings) -> dict[tuple[int, int], Tensor]:
    """Images of all groups by (class, number)."""
    targets = layer_targets(teacher, class_statistics(teacher), settings.statistics_kind)
    images: dict[tuple[int, int], Tensor] = {}
    for group in settings.groups(teacher.classes):
        made = recovered(teacher, group, targets, settings)
        images.update(zip(group.members, made.images, strict=True))
    return images


@pytest.mark.parametrize("method", ["lpld", "sre2l", "cda"])
def test_grouped_recovery_equals_one_batch_at_a_time(method: str) -> None:
    teacher = tiny_teacher(dtype=torch.float64)
    kind = "class" if method == "lpld" else "global"
    # Batches of 3 of 4 classes leave units of 3 and 1: groups of unequal units are covered too.
    alone = make_settings(method=method, statistics_kind=kind, batch_size=3, class_group=1)
    expected = recover_all(teacher, alone)
    assert len(expected) == 12
    for group_size in (3, 4, 6):
        found = recover_all(teacher, dataclasses.replace(alone, class_group=group_size))
        for member, image in expected.items():
            torch.testing.assert_close(found[member], image, rtol=0, atol=1e-10)


def test_recovery_follows_its_parts_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam, cosine rate and clamping written out again, on the loss of an unchanged picture."""
    teacher = tiny_teacher(dtype=torch.float64)
    monkeypatch.setattr("lpld_core.recover.optimise.FLIP_PROBABILITY", 0.0)
    settings = make_settings(ipc=2, class_group=1, smallest_crop=1.0, roll=0, iterations=4)
    statistics = class_statistics(teacher)
    targets = layer_targets(teacher, statistics, "class")
    group = settings.groups(4)[1]
    made = recovered(teacher, group, targets, settings).images

    from lpld_core.recover.optimise import draw_noise
    from tests.lpld_core.recover.test_losses import plain_losses

    rows = {layer.name: (layer.mean[1].double(), layer.variance[1].double()) for layer in statistics.layers}
    images = torch.from_numpy(draw_noise((2, 3, 8, 8), seed=0, unit=(1, 0)))
    first, second = torch.zeros_like(images), torch.zeros_like(images)
    low = ((0 - torch.tensor(MEAN)) / torch.tensor(STD)).double().view(1, 3, 1, 1)
    high = ((1 - torch.tensor(MEAN)) / torch.tensor(STD)).double().view(1, 3, 1, 1)
    for step in range(4):
        images = images.detach().requires_grad_()
        cross_entropy, batchnorm = plain_losses(teacher.model, images, torch.tensor([1, 1]), rows)
        (gradient,) = torch.autograd.grad(cross_entropy + 0.05 * batchnorm, images)
        first = 0.5 * first + 0.5 * gradient
        second = 0.9 * second + 0.1 * gradient**2
        rate = 0.1 * 0.5 * (1 + math.cos(math.pi * step / 4))
        move = (first / (1 - 0.5 ** (step + 1))) / ((second / (1 - 0.9 ** (step + 1))).sqrt() + 1e-8)
        images = torch.minimum(torch.maximum(images.detach() - rate * move, low), high)
    torch.testing.assert_close(made, images, rtol=0, atol=1e-6)


def test_ablation_with_global_statistics_differs_from_class_statistics() -> None:
    teacher = tiny_teacher()
    by_class = recover_all(teacher, make_settings())
    by_global = recover_all(teacher, make_settings(statistics_kind="global"))
    assert not torch.equal(by_class[1, 0], by_global[1, 0])


def test_recovery_lowers_both_losses() -> None:
    teacher = tiny_teacher()
    targets = layer_targets(teacher, class_statistics(teacher), "class")

    def after(iterations: int) -> tuple[float, float]:
        settings = make_settings(iterations=iterations)
        made = recovered(teacher, settings.groups(4)[0], targets, settings)
        return made.cross_entropy, made.batchnorm

    start, end = after(1), after(150)
    assert end[0] < start[0]
    assert end[1] < start[1]


def test_curriculum_lets_crops_shrink_along_a_cosine() -> None:
    settings = make_settings(method="cda", statistics_kind="global", iterations=100)
    crops = [settings.crop_from(iteration) for iteration in (0, 50, 100)]
    assert crops == pytest.approx([1.0, 0.54, 0.08])
    assert make_settings().crop_from(0) == 0.08
    assert [settings.rate(i) for i in (0, 50, 100)] == pytest.approx([0.1, 0.05, 0.0])


def test_nan_names_the_class() -> None:
    teacher = tiny_teacher()
    statistics = class_statistics(teacher)
    statistics.layers[0].mean[3] = math.nan
    targets = layer_targets(teacher, statistics, "class")
    settings = make_settings(class_group=4)
    with pytest.raises(ComputationError, match=r"class 3 gave values that are not finite by iteration 0"):
        recovered(teacher, settings.groups(4)[0], targets, settings)


class Greedy(nn.Module):
    """Asks for more memory than any machine has."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.inner(images) + torch.empty(2**52).sum()
        return logits


def test_out_of_memory_says_what_to_lower() -> None:
    teacher = tiny_teacher()
    targets = layer_targets(teacher, None, "global")
    greedy = dataclasses.replace(teacher, model=Greedy(teacher.model))
    for changes, advice in (
        ({"class_group": 2}, "lower class_group, now 2"),
        ({"class_group": 1}, "lower ipc, now 3"),
        ({"class_group": 1, "method": "sre2l"}, "lower batch_size, now 100"),
    ):
        settings = make_settings(statistics_kind="global", **changes)
        with pytest.raises(ComputationError, match=f"out of memory.*{advice}"):
            recovered(greedy, settings.groups(4)[0], targets, settings)
    vast = make_settings(statistics_kind="global", size=(3_000_000, 3_000_000))
    with pytest.raises(ComputationError, match="out of memory"):
        recovered(teacher, vast.groups(4)[0], targets, vast)


def test_other_errors_of_torch_pass_through() -> None:
    teacher = tiny_teacher()
    broken = dataclasses.replace(teacher, model=nn.Sequential(teacher.model, nn.Linear(7, 4)))
    settings = make_settings(statistics_kind="global")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        recovered(broken, settings.groups(4)[0], layer_targets(teacher, None, "global"), settings)


def test_teachers_and_statistics_must_fit() -> None:
    with pytest.raises(InvalidArgumentError, match="no BatchNorm2d"):
        layer_targets(tiny_teacher(batchnorm=False), None, "global")
    with pytest.raises(InvalidArgumentError, match="class statistics are needed"):
        layer_targets(tiny_teacher(), None, "class")
    with pytest.raises(InvalidArgumentError, match="another teacher"):
        layer_targets(tiny_teacher(seed=1), class_statistics(tiny_teacher()), "class")


def test_plans_hold_every_image_once() -> None:
    for units in (class_units(7, 3), mixed_units(7, 3, 4)):
        for size in (1, 2, 100):
            groups = grouped(units, size)
            members = [member for group in groups for member in group.members]
            assert sorted(members) == [(label, number) for label in range(7) for number in range(3)]
            shares = [[g.index for g in Part(number=n, of=3).share(groups)] for n in (1, 2, 3)]
            assert sorted(itertools.chain(*shares)) == list(range(len(groups)))
    assert [unit.members for unit in mixed_units(3, 1, 2)] == [((0, 0), (1, 0)), ((2, 0),)]
    with pytest.raises(InvalidArgumentError, match="part is out of range"):
        Part(number=3, of=2)


def test_forward_passes_have_a_usual_size() -> None:
    assert [fitting_group(images) for images in (1, 10, 60, 200)] == [100, 10, 1, 1]


def test_presets_are_the_papers() -> None:
    table = {name: tuple(values.values()) for name, values in RECOVERY_PRESETS.items()}
    assert table == {
        "imagenet1k": (4000, 0.25, 0.01, 32, "forward"),
        "tiny": (4000, 0.1, 0.05, 4, "both"),
        "imagenet21k": (2000, 0.05, 0.25, 32, "forward"),
    }


def test_settings_of_a_method_are_the_presets_and_what_is_given() -> None:
    large = method_settings("lpld", size=(224, 224), classes=1000, ipc=10)
    assert large == RecoverSettings(
        method="lpld",
        ipc=10,
        iterations=4000,
        learning_rate=0.25,
        alpha=0.01,
        roll=32,
        roll_direction="forward",
        size=(224, 224),
    )
    given: dict[str, Any] = {"alpha": 0.5, "roll_direction": "both", "crops": 2, "batch_size": 50}
    small = method_settings("sre2l", size=(64, 64), classes=20, ipc=10, **given)
    assert isinstance(small, RecoverSettings)
    assert (small.alpha, small.roll, small.statistics_kind, small.class_group) == (0.5, 4, "global", 5)
    cda = method_settings("cda", size=(64, 64), classes=20, ipc=1, preset="tiny")
    assert isinstance(cda, RecoverSettings)
    assert cda.roll_direction == "forward"
    rded = method_settings("rded", size=(64, 64), classes=20, ipc=1, **given)
    assert rded == RdedSettings(ipc=1, size=(64, 64), crops=2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", "magic"),
        ("statistics_kind", "local"),
        ("roll_direction", "backward"),
        ("ipc", 0),
        ("alpha", -1.0),
        ("alpha", math.nan),
        ("learning_rate", 0.0),
        ("smallest_crop", 1.5),
        ("seed", -1),
    ],
)
def test_settings_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{field.replace('_', ' ')} is wrong"):
        make_settings(**{field: value})


def test_other_settings_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"statistics kind is wrong.*sre2l mixes classes"):
        make_settings(method="sre2l", statistics_kind="class")
    with pytest.raises(InvalidArgumentError, match="size is wrong"):
        RdedSettings(ipc=1, size=(33, 32))
