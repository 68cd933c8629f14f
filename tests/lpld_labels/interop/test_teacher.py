"""The proof: the authors' labels come back when the replayed images go through the teacher.

Only their own folders hold a real teacher's labels; test_verified.py proves the same of written ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lpld_core.relabel.verify_teacher import verify_with_teacher
from lpld_core.teachers.teacher import LoadedTeacher, load_teacher
from lpld_labels import PoolReader
from lpld_labels.interop.importing import import_labels
from lpld_labels.interop.settings import ImportOptions
from tests.lpld_labels.interop.conftest import Imported

SEEDS = {"lpld_in1k": 3, "lpqld_in1k_k50": 0, "sre2l_mixup": 4}
"""Seeds that sample one of the small batches, not of epoch 0 (which is the same in both eras)."""
FLOAT16_STEP = 0.0079
"""Of the largest logits here, which are between 8 and 16."""


@pytest.fixture(scope="module")
def teacher() -> Iterator[LoadedTeacher]:
    """EfficientNet-Lite0, which labelled the ImageNet-1K folders."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield load_teacher("tests.lpld_core.efficientnet_lite:lite0", input_size=(224, 224))
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", SEEDS)
def test_the_teacher_says_the_same(
    imported_from_authors: Imported, teacher: LoadedTeacher, name: str
) -> None:
    source, path, _ = imported_from_authors(name)
    with PoolReader(path) as pool:
        found = verify_with_teacher(pool, source.images, teacher, batches=1, seed=SEEDS[name])
    assert found.agrees
    assert found.largest_difference <= FLOAT16_STEP
    assert found.top1_agreement * found.rows + found.near_ties == found.rows


def test_wrong_image_ids_are_found_out(
    imported_from_authors: Imported, tmp_path: Path, teacher: LoadedTeacher
) -> None:
    source, _, _ = imported_from_authors("sre2l_mixup")
    options = ImportOptions(torch_era="old")
    report = import_labels(source.labels, tmp_path / "pool", images=source.images, options=options)
    assert any("do not support these image ids" in line for line in report.odd)
    with PoolReader(tmp_path / "pool") as pool:
        found = verify_with_teacher(pool, source.images, teacher, batches=1, seed=SEEDS["sre2l_mixup"])
    assert not found.agrees
    assert found.first_difference is not None
    assert found.first_difference.key == (1, 2)
    assert found.rows_above_tolerance == found.rows
