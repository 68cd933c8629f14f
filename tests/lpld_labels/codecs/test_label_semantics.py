from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpld_labels.codecs.label_semantics import (
    SMALLEST,
    as_finite_logits,
    as_logits,
    find_normalisation,
    softened,
    softmax,
)
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import PoolHeader, Teacher
from tests.factories import make_header
from tests.label_factory import make_logits, make_probabilities

NONE = (None, None)
SPARSE = np.array([[0.9, 0.1, *[0] * 998]], np.float32)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0, 20.0])
def test_softened_logits_are_torchs_softmax_bit_for_bit(temperature: float) -> None:
    logits = torch.from_numpy(make_logits(16, 100, dtype=np.float32))
    assert torch.equal(softened(logits, "logits", temperature), torch.softmax(logits / temperature, dim=1))
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidArgumentError, match="temperature"):
            softened(SPARSE, "probabilities", wrong)


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(["logits", "probabilities"]),
    temperature=st.floats(0.2, 100),
    zeros=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_numpy_and_torch_give_the_same_numbers(kind: str, temperature: float, zeros: int, seed: int) -> None:
    make = make_logits if kind == "logits" else make_probabilities
    labels = make(5, 10, seed=seed, dtype=np.float32)
    if kind == "probabilities":
        labels[:, :zeros] = 0
    tensor = torch.from_numpy(labels)
    for ours, theirs in (
        (softened(labels, kind, temperature), softened(tensor, kind, temperature)),
        (as_logits(labels, kind), as_logits(tensor, kind)),
        (as_finite_logits(labels, kind), as_finite_logits(tensor, kind)),
        (softmax(labels), softmax(tensor)),
    ):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize("labels", [SPARSE, torch.from_numpy(SPARSE)], ids=["numpy", "torch"])
def test_a_probability_of_zero_has_no_mass_at_any_temperature(labels: Any) -> None:
    for temperature in (1, 4, 20, 100):
        soft = np.asarray(softened(labels, "probabilities", temperature))
        expected = SPARSE[0, :2].astype(np.float64) ** (1 / temperature)
        np.testing.assert_allclose(soft[0, :2], expected / expected.sum(), rtol=1e-6)
        assert not soft[0, 2:].any()
    assert np.isneginf(np.asarray(as_logits(labels, "probabilities"))[0, 2:]).all()
    assert np.asarray(as_finite_logits(labels, "probabilities"))[0, 2] == pytest.approx(np.log(SMALLEST))


def test_an_unknown_normalisation_is_refused_and_not_guessed() -> None:
    grey, colour = ((0.5,) * 3, (0.25,) * 3), ((0.4, 0.5, 0.6), (0.2, 0.2, 0.3))

    def header(*known: tuple[tuple[float, ...], tuple[float, ...]] | tuple[None, None]) -> PoolHeader:
        return make_header(teachers=tuple(Teacher(name="t", mean=mean, std=std) for mean, std in known))

    assert find_normalisation(header(grey, grey), None, None, where="pool") == grey
    assert find_normalisation(header(NONE), *colour, where="pool") == colour
    assert find_normalisation(header(grey), *colour, where="pool") == colour
    for unknown in (header(), header(NONE), header(grey, colour), header(grey, NONE)):
        with pytest.raises(InvalidArgumentError, match="normalisation is not known"):
            find_normalisation(unknown, None, None, where="pool")
    with pytest.raises(InvalidArgumentError, match="give both"):
        find_normalisation(header(grey), colour[0], None, where="pool")
