from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lpld_core.settings import TeacherChoice
from lpld_core.teachers.ensemble import Ensemble, load_ensemble, normalised_mean
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import ENSEMBLE_WORDS
from lpld_labels.render import normalise

SMALL = "small-resnet10:width=8,stem_stride=2"


def outputs(seed: int, scales: list[float]) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.standard_normal((6, 4))) * scale for scale in scales]


@given(st.integers(0, 99), st.lists(st.floats(0.01, 100), min_size=2, max_size=4))
def test_every_teacher_gets_the_mean_norm(seed: int, scales: list[float]) -> None:
    given_outputs = outputs(seed, scales)
    norms = [output.norm() for output in given_outputs]
    mean = sum(norms) / len(norms)
    expected = sum(output * (mean / norm) for output, norm in zip(given_outputs, norms, strict=True))
    torch.testing.assert_close(normalised_mean(given_outputs), expected / len(scales))


@given(st.integers(0, 99), st.floats(0.01, 100))
def test_loud_teachers_do_not_outvote_others(seed: int, scale: float) -> None:
    quiet = normalised_mean(outputs(seed, [1.0, 1.0]))
    loud = normalised_mean(outputs(seed, [1.0, scale]))
    torch.testing.assert_close(loud / loud.norm(), quiet / quiet.norm())


def test_one_teacher_is_left_alone_and_silent_ones_do_no_harm() -> None:
    (only,) = outputs(0, [3.0])
    assert normalised_mean([only]) is only
    assert torch.isfinite(normalised_mean([only, torch.zeros_like(only)])).all()


def test_each_teacher_normalises_pixels_its_own_way() -> None:
    choices = [
        TeacherChoice(name=SMALL, weights="random", mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2)),
        TeacherChoice(name=SMALL, weights="random", mean=(0.1, 0.1, 0.1), std=(0.3, 0.3, 0.3)),
    ]
    ensemble = load_ensemble(choices, classes=4)
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 3, 16, 16), dtype=np.uint8))
    expected = normalised_mean(
        [
            t.model(normalise(pixels, c.mean or (), c.std or ()))
            for t, c in zip(ensemble.teachers, choices, strict=True)
        ]
    )
    torch.testing.assert_close(ensemble.logits(pixels), expected)
    torch.testing.assert_close(ensemble.logits(pixels.float()), expected)
    assert ensemble.rule == ENSEMBLE_WORDS["norm-scaled"]
    assert Ensemble(ensemble.teachers[:1]).rule is None
    assert [d.mean for d in ensemble.descriptions] == [c.mean for c in choices]


def test_teachers_that_disagree_are_refused() -> None:
    def small(classes: int = 4, **size: Any) -> list[LoadedTeacher]:
        choice = TeacherChoice(name=SMALL, weights="random", **size)
        return list(load_ensemble([choice], classes=classes).teachers)

    with pytest.raises(InvalidArgumentError, match="number of classes"):
        Ensemble([*small(), *small(5)])
    with pytest.raises(InvalidArgumentError, match="different image sizes"):
        _ = Ensemble([*small(), *small(input_size=(32, 32))]).input_size
    with pytest.raises(InvalidArgumentError, match="no teacher"):
        Ensemble([])
