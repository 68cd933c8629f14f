"""Random pools written and read back, for every codec that needs no fitting."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpld_labels.inspect.check import check_pool
from tests.factories import assert_same_views, make_batch, make_header, make_images, write_pool

CODECS = ("f16", "f16:plain", "f32", "f32:plain", "int8")


@st.composite
def pools(draw: st.DrawFn) -> dict[str, Any]:
    """Describe a pool: shape, features, and an incomplete last batch in some epochs."""
    batch_size = draw(st.sampled_from([1, 2, 7, 64, 1024]))
    return {
        # Large batches of many classes only cost time; what they could break shows at the extremes.
        "classes": draw(st.integers(2, 2000 if batch_size <= 7 else 200)),
        "batch_size": batch_size,
        "batches": draw(st.integers(0, 5)),
        "last_rows": draw(st.integers(1, batch_size)),
        "mixes": draw(st.sampled_from([["none"], ["cutmix"], ["mixup"], ["none", "cutmix", "mixup"]])),
        "options": {
            "cutout": draw(st.booleans()),
            "patches": draw(st.sampled_from([None, 2, 3])),
            "dtype": draw(st.sampled_from([np.float16, np.float32])),
        },
    }


@pytest.mark.parametrize("codec", CODECS)
@given(shape=pools())
@settings(max_examples=25, deadline=None)
def test_what_is_written_is_read_back(codec: str, shape: dict[str, Any]) -> None:
    classes, size, mixes = shape["classes"], shape["batch_size"], shape["mixes"]
    images, header = make_images(classes=classes), make_header(classes, size)
    batches = []
    for number in range(shape["batches"]):
        options = {"rows": shape["last_rows"] if number % 2 else size, "mix": mixes[number % len(mixes)]}
        options |= {"classes": classes, "images": images, **shape["options"]}
        batches.append(make_batch(number // 2, number % 2, **options))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pool"
        with write_pool(path, batches, codec=codec, header=header, images=images) as pool:
            assert list(pool.keys) == [batch.key for batch in batches]
            for expected in reversed(batches):
                found = pool.read(expected.key)
                assert_same_views(found, expected)
                _assert_same_labels(codec, found.labels, expected.labels)
        assert check_pool(path).whole


def _assert_same_labels(codec: str, found: np.ndarray[Any, Any], written: np.ndarray[Any, Any]) -> None:
    if codec != "int8":
        dtype = np.float16 if codec.startswith("f16") else np.float32
        np.testing.assert_array_equal(found, written.astype(dtype))
        return
    values = written.astype(np.float64)
    step = (values.max(axis=1) - values.min(axis=1)) / 255
    rounding = np.spacing(np.abs(values).max(axis=1).astype(np.float32)) * 4
    assert (np.abs(found - values) <= (step / 2 + rounding)[:, None]).all()


@pytest.mark.parametrize("codec", [*CODECS, "int6", "int4"])
def test_labels_come_in_the_dtype_asked_for(tmp_path: Path, codec: str) -> None:
    batch = make_batch(0, 0, rows=5, classes=700)
    with write_pool(tmp_path / "pool", [batch], codec=codec) as pool:
        halves = pool.read_labels(batch.key, dtype=np.float16)
        singles = pool.read_labels(batch.key, dtype=np.float32)
    assert singles.dtype == np.float32
    np.testing.assert_array_equal(halves, singles.astype(np.float16))
    np.testing.assert_allclose(singles, batch.labels, atol=1.0 if codec == "int4" else 0.2)
    with write_pool(tmp_path / "empty", [], codec=codec) as pool:
        assert list(pool) == []
    assert check_pool(tmp_path / "empty").whole
