"""Pictures made without torch are the views that torch makes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lpld_labels.errors import InvalidArgumentError, InvalidBatchError
from lpld_labels.render import ImageStore, apply_views
from lpld_labels.render.image_source import FolderImages
from lpld_labels.render.picture import FILTERS, view_picture
from lpld_labels.render.resize import RESIZERS
from tests.factories import make_batch, make_header
from tests.lpld_labels.inspect.pages import picture_folder


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    table = picture_folder(tmp_path / "images", ["a", "b"], each=4)
    return ImageStore(FolderImages(tmp_path / "images", table))


def test_every_resize_backend_has_its_filter() -> None:
    assert FILTERS.keys() == RESIZERS.keys()


@pytest.mark.parametrize("resize", list(FILTERS))
@pytest.mark.parametrize("mix", ["none", "cutmix", "mixup"])
def test_pictures_are_what_training_sees(store: ImageStore, resize: str, mix: str) -> None:
    how = replace(make_header(10, 8, mix).augmentation, resize=resize)
    largest = 2 if resize == "torch" else 0
    for batch in range(4):
        views = make_batch(0, batch, images=store.table, mix=mix, cutout=batch % 2 == 1, patches=1 + batch)
        seen = np.rint(apply_views(views, store, how).permute(0, 2, 3, 1).numpy())
        for slot in range(views.rows):
            picture = view_picture(views, slot, store, how)
            assert picture.dtype == np.uint8
            assert np.abs(picture - seen[slot]).max() <= largest, (batch, slot)


def test_what_cannot_be_drawn_is_refused(store: ImageStore) -> None:
    how = make_header(10, 8).augmentation
    views = make_batch(0, 0, images=store.table)
    with pytest.raises(InvalidArgumentError, match="unknown resize backend"):
        view_picture(views, 0, store, replace(how, resize="magic"))
    with pytest.raises(InvalidBatchError, match="reaches outside"):
        view_picture(replace(views, crops=views.crops + 48), 0, store, how)


def test_no_torch_is_needed() -> None:
    code = "import sys, lpld_labels.render.picture; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
