"""Whatever is in a folder: an import refuses it, or publishes a pool that verifies."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lpld_labels.errors import LabelPoolError
from lpld_labels.inspect.check import check_pool
from lpld_labels.interop.importing import import_labels
from lpld_labels.interop.settings import ImportOptions
from tests.lpld_labels.interop.label_folders import CLASSES, SIZE, write_epochs, write_fkd, write_images
from tests.lpld_labels.interop.test_importing import changed

FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 6e-8, 65504.0, 3e38, -3e38, *map(float, ("inf", "-inf", "nan")))


def tensors(kinds: Any, rows: int, columns: int) -> st.SearchStrategy[torch.Tensor]:
    """Return a strategy of tensors with special values and, rarely, wrong shapes."""
    shapes = st.sampled_from([(rows, columns)] * 6 + [(rows, 0), (rows + 1, columns), (rows,)])
    values = st.lists(st.sampled_from(FLOATS[:8]), max_size=3) | st.lists(st.sampled_from(FLOATS), max_size=3)

    def make(shape: tuple[int, ...], dtype: torch.dtype, few: list[float]) -> torch.Tensor:
        array = torch.linspace(0, 1, int(np.prod(shape))).reshape(shape).to(dtype)
        array.reshape(-1)[: len(few)] = torch.tensor(few)[: array.numel()].to(dtype)
        return array

    return st.builds(make, shapes, st.sampled_from(kinds), values)


HALF_OR_SINGLE = (torch.float16, torch.float16, torch.float32)
INTEGERS = st.integers(-1, 9) | st.sampled_from([2**15, 2**31, 2**63, 10**400])
WRONG_ITEMS: dict[int, st.SearchStrategy[Any]] = {
    0: tensors(HALF_OR_SINGLE, 8, 4),
    1: st.integers(0, 9).map(lambda rows: torch.ones(rows, dtype=torch.bool)) | tensors(HALF_OR_SINGLE, 8, 7),
    2: st.lists(st.integers(0, 9), min_size=7, max_size=8).map(torch.tensor) | st.none(),
    3: st.sampled_from(FLOATS) | st.sampled_from([np.float32(-0.0), np.float64(1.0), None, 1]),
    4: st.lists(INTEGERS | st.integers(0, SIZE + 1).map(np.int64), min_size=3, max_size=4) | st.none(),
    5: tensors(HALF_OR_SINGLE, 8, CLASSES),
    6: st.lists(st.integers(-1, 30), min_size=7, max_size=8).map(torch.tensor),
}
WRONG_LABELS_OF_IMAGES: dict[int, st.SearchStrategy[Any]] = {
    0: tensors(HALF_OR_SINGLE, 5, 4),
    1: st.integers(4, 5).map(lambda rows: torch.ones(rows, dtype=torch.bool)),
    2: tensors(HALF_OR_SINGLE, 5, 2)
    | tensors((torch.int64, torch.float32), 5, 1).map(lambda t: t.reshape(-1))
    | st.lists(
        st.tuples(st.integers(0, CLASSES), st.sampled_from(FLOATS[:3] * 2 + FLOATS)), min_size=5, max_size=5
    ).map(torch.tensor),
}
SOURCES = {"batches": WRONG_ITEMS, "images": WRONG_LABELS_OF_IMAGES}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_imported_pool_verifies(kind: str, tmp_path: Path) -> None:
    images, source = write_images(tmp_path / "images"), tmp_path / "labels"
    items = SOURCES[kind]
    if kind == "batches":
        write_epochs(source, epochs=1, ids_in_batch=True)
    else:
        write_fkd(source, images, kept=1)
    # The two complete batches, or all files.
    files = sorted(source.rglob("*.tar"))[: 2 if kind == "batches" else None]
    sound = {path: path.read_bytes() for path in files}
    published = []

    @example(place=3, value=-0.0, everywhere=False)
    @example(place=3, value=-0.0, everywhere=True)
    @given(place=st.sampled_from(list(items)), value=st.data(), everywhere=st.booleans())
    def check(place: int, value: Any, everywhere: bool) -> None:
        if kind == "images" and place not in items:
            return
        item = value if isinstance(value, float) else value.draw(items[place])
        for path in files:
            path.write_bytes(sound[path])
            if everywhere or path == files[0]:
                changed(path, place, item)
        pool = tmp_path / "pool"
        options = ImportOptions(
            classes=CLASSES, output_size=SIZE, ensemble="average" if kind == "batches" else None
        )
        try:
            import_labels(source, pool, images=images, options=options)
        except LabelPoolError:
            assert not pool.exists()
            return
        published.append(item)
        assert check_pool(pool).problems == ()
        shutil.rmtree(pool)

    check()
    assert published
