import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lpld_core.recover.optimise import (
    RecoveredGroup,
    UnitMoments,
    View,
    draw_noise,
    draw_view,
    layer_targets,
    recover_group,
    show,
)
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
from tests.lpld_core.networks import collect_statistics, tiny_teacher

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


def test_curriculum_lets_crops_shrink_along_a_cosine() -> None:
    settings = make_settings(method="cda", statistics_kind="global", iterations=100)
    crops = [settings.crop_from(iteration) for iteration in (0, 50, 100)]
    assert crops == pytest.approx([1.0, 0.54, 0.08])
    assert make_settings().crop_from(0) == 0.08
    assert [settings.rate(i) for i in (0, 50, 100)] == pytest.approx([0.1, 0.05, 0.0])


class Greedy(nn.Module):
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


def test_teachers_and_statistics_must_fit() -> None:
    with pytest.raises(InvalidArgumentError, match="no BatchNorm2d"):
        layer_targets(tiny_teacher(batchnorm=False), None, "global")
    with pytest.raises(InvalidArgumentError, match="class statistics are required"):
        layer_targets(tiny_teacher(), None, "class")
    with pytest.raises(InvalidArgumentError, match="a different teacher"):
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


def test_settings_of_a_method_are_the_papers_and_what_is_given() -> None:
    table = {name: tuple(values.values()) for name, values in RECOVERY_PRESETS.items()}
    assert table == {
        "imagenet1k": (4000, 0.25, 0.01, 32, "forward"),
        "tiny": (4000, 0.1, 0.05, 4, "both"),
        "imagenet21k": (2000, 0.05, 0.25, 32, "forward"),
    }
    assert [fitting_group(images) for images in (1, 10, 60, 200)] == [100, 10, 1, 1]
    large = method_settings("lpld", size=(224, 224), classes=1000, ipc=10)
    assert isinstance(large, RecoverSettings)
    found = (large.iterations, large.learning_rate, large.alpha, large.roll, large.roll_direction)
    assert found == table["imagenet1k"]
    given: dict[str, Any] = {"alpha": 0.5, "roll_direction": "both", "crops": 2, "batch_size": 50}
    small = method_settings("sre2l", size=(64, 64), classes=20, ipc=10, **given)
    assert isinstance(small, RecoverSettings)
    assert (small.alpha, small.roll, small.statistics_kind, small.class_group) == (0.5, 4, "global", 5)
    rded = method_settings("rded", size=(64, 64), classes=20, ipc=1, **given)
    assert rded == RdedSettings(ipc=1, size=(64, 64), crops=2)


def test_settings_out_of_range_are_refused() -> None:
    for name, value in (
        ("method", "magic"), ("statistics_kind", "local"), ("roll_direction", "backward"), ("ipc", 0),
        ("alpha", -1.0), ("alpha", math.nan), ("learning_rate", 0.0), ("smallest_crop", 1.5), ("seed", -1),
        ("quality", 0), ("format", "gif"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=f"{name.replace('_', ' ')} is wrong"):
            make_settings(**{name: value})
    with pytest.raises(InvalidArgumentError, match=r"statistics kind is wrong.*sre2l mixes classes"):
        make_settings(method="sre2l", statistics_kind="class")
    with pytest.raises(InvalidArgumentError, match="size is wrong"):
        RdedSettings(ipc=1, size=(33, 32))


@st.composite
def views(draw: st.DrawFn, height: int = 12, width: int = 9) -> View:
    rows, columns = draw(st.integers(1, height)), draw(st.integers(1, width))
    return View(
        top=draw(st.integers(0, height - rows)),
        left=draw(st.integers(0, width - columns)),
        height=rows,
        width=columns,
        flip=draw(st.booleans()),
        roll_down=draw(st.integers(-5, 5)),
        roll_right=draw(st.integers(-5, 5)),
    )


@settings(deadline=None, max_examples=50)
@given(first=views(), second=views())
def test_matrices_do_what_crop_resize_flip_and_roll_do(first: View, second: View) -> None:
    images = torch.randn(5, 3, 12, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = []
    for unit, view in zip(torch.split(images, [2, 3]), (first, second), strict=True):
        crop = unit[:, :, view.top : view.top + view.height, view.left : view.left + view.width]
        resized = torch.nn.functional.interpolate(crop, size=(12, 9), mode="bilinear", align_corners=False)
        flipped = resized.flip(3) if view.flip else resized
        expected.append(torch.roll(flipped, (view.roll_down, view.roll_right), dims=(2, 3)))
    torch.testing.assert_close(show(images, [2, 3], [first, second]), torch.cat(expected))


def roomy(**changes: Any) -> RecoverSettings:
    return make_settings(size=(32, 32), roll=4, roll_direction="both", **changes)


def test_draws_follow_from_seed_unit_and_iteration_alone() -> None:
    def draw(seed: int = 1, unit: tuple[int, int] = (2, 0), iteration: int = 3) -> View:
        return draw_view(roomy(seed=seed), unit, iteration)

    assert draw() == draw()
    others = [draw(seed=2), draw(unit=(0, 2)), draw(unit=(3, 0)), draw(iteration=4)]
    assert all(other != draw() for other in others)
    noise = draw_noise((2, 3, 4, 4), seed=1, unit=(2, 0))
    assert (noise == draw_noise((2, 3, 4, 4), seed=1, unit=(2, 0))).all()
    assert (noise != draw_noise((2, 3, 4, 4), seed=1, unit=(0, 2))).any()


def test_draws_fill_their_ranges() -> None:
    both = roomy(smallest_crop=0.25)
    drawn = [draw_view(both, (0, 0), n) for n in range(2000)]
    assert {view.roll_down for view in drawn} == set(range(-4, 5)) == {view.roll_right for view in drawn}
    share = sum(view.flip for view in drawn) / len(drawn)
    assert 0.45 < share < 0.55
    areas = [view.height * view.width / 1024 for view in drawn]
    assert 0.23 < min(areas) < 0.3
    assert max(areas) > 0.95
    assert all(view.top + view.height <= 32 and view.left + view.width <= 32 for view in drawn)


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
