import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lpld_labels import BatchKey, Box, CutOut, Mix
from lpld_labels.errors import InvalidBatchError
from tests.factories import make_batch

GOOD = make_batch(3, 7, cutout=True, patches=2)
ROWS = GOOD.rows
FILL = np.zeros((ROWS, 3), np.uint8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"key": BatchKey(-1, 0)}, "epoch"),
        ({"key": (0.5, 0)}, "integer"),
        ({"images": GOOD.images.astype(np.float32)}, "images"),
        ({"images": GOOD.images[:0]}, "images"),
        ({"images": GOOD.images - 1000}, "images"),
        ({"crops": GOOD.crops[:, :3]}, "crops"),
        ({"crops": np.zeros_like(GOOD.crops)}, "height and width"),
        ({"flips": GOOD.flips.astype(np.uint8)}, "flips"),
        ({"flips": GOOD.flips[:-1]}, "flips"),
        ({"mix": Mix(partner=np.full(ROWS, ROWS, np.int32), strength=0.5)}, "mix.partner"),
        ({"mix": Mix(partner=np.zeros(ROWS, np.int32), strength=1.5)}, "mix.strength"),
        ({"mix": Mix(partner=np.zeros(ROWS, np.int32), strength=float("nan"))}, "mix.strength"),
        ({"mix": Mix(partner=np.zeros(ROWS, np.int32), strength=0.5, box=Box(5, 0, 4, 9))}, "mix.box"),
        ({"cutout": CutOut(boxes=np.full((ROWS, 4), [4, 0, 2, 9]), fill=FILL)}, "boxes"),
        ({"cutout": CutOut(boxes=np.zeros((ROWS, 4), np.int32), fill=FILL[:, :2])}, "cutout.fill"),
        ({"patch_order": np.zeros((ROWS, 4), np.uint8)}, "permutation"),
        ({"patch_order": np.zeros((ROWS, 5), np.uint8)}, "patch_order"),
        ({"labels": GOOD.labels.astype(np.float64)}, "float16 or float32"),
        ({"labels": GOOD.labels[:, :1]}, "labels"),
        ({"labels": GOOD.labels[1:]}, "labels"),
    ],
)
def test_a_wrong_field_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidBatchError, match=words):
        replace(GOOD, **changes)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_labels_that_are_not_finite_name_batch_and_image(value: float, dtype: Any) -> None:
    labels = GOOD.labels.astype(dtype)
    labels[5, 2] = value
    image = int(GOOD.images[5])
    message = rf"epoch 3 batch 7.*image {image} \(slot 5, class 2\)"
    with pytest.raises(InvalidBatchError, match=message):
        replace(GOOD, labels=labels)


def test_integers_of_any_width_are_taken() -> None:
    batch = replace(GOOD, images=GOOD.images.astype(np.int64), crops=GOOD.crops.astype(np.uint16))
    assert batch.images.dtype == np.int32
    assert batch.crops.dtype == np.int32


def test_errors_survive_the_trip_from_a_worker() -> None:
    error = InvalidBatchError("field is wrong", where="here", expected="this", got="that", hint="do so")
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, InvalidBatchError)
    assert str(copy) == str(error) == "here: field is wrong (expected this, got that); do so"
    assert copy.hint == "do so"
