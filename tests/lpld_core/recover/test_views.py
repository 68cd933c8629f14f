from __future__ import annotations

import dataclasses
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpld_core.recover.optimise import View, draw_noise, draw_view, show
from lpld_core.recover.settings import RecoverSettings, method_settings


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


def make_settings(**changes: Any) -> RecoverSettings:
    base = method_settings("lpld", size=(32, 32), classes=10, ipc=1, preset="tiny")
    assert isinstance(base, RecoverSettings)
    return dataclasses.replace(base, **changes)


def test_draws_follow_from_seed_unit_and_iteration_alone() -> None:
    def draw(seed: int = 1, unit: tuple[int, int] = (2, 0), iteration: int = 3) -> View:
        return draw_view(make_settings(seed=seed), unit, iteration)

    assert draw() == draw()
    others = [draw(seed=2), draw(unit=(0, 2)), draw(unit=(3, 0)), draw(iteration=4)]
    assert all(other != draw() for other in others)
    noise = draw_noise((2, 3, 4, 4), seed=1, unit=(2, 0))
    assert (noise == draw_noise((2, 3, 4, 4), seed=1, unit=(2, 0))).all()
    assert (noise != draw_noise((2, 3, 4, 4), seed=1, unit=(0, 2))).any()


def test_draws_fill_their_ranges() -> None:
    both = make_settings(smallest_crop=0.25)
    drawn = [draw_view(both, (0, 0), n) for n in range(2000)]
    assert {view.roll_down for view in drawn} == set(range(-4, 5)) == {view.roll_right for view in drawn}
    forward = dataclasses.replace(both, roll_direction="forward")
    rolled = [draw_view(forward, (0, 0), n) for n in range(2000)]
    assert {view.roll_down for view in rolled} == set(range(5)) == {view.roll_right for view in rolled}
    # The same draws: nothing but the shift follows the direction.
    assert [dataclasses.replace(v, roll_down=0, roll_right=0) for v in rolled] == [
        dataclasses.replace(v, roll_down=0, roll_right=0) for v in drawn
    ]
    share = sum(view.flip for view in drawn) / len(drawn)
    assert 0.45 < share < 0.55
    areas = [view.height * view.width / 1024 for view in drawn]
    assert 0.23 < min(areas) < 0.3
    assert max(areas) > 0.95
    assert all(view.top + view.height <= 32 and view.left + view.width <= 32 for view in drawn)
