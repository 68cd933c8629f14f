"""What a folder does not say is given by its owner, and may be wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.interop.importing import import_labels
from lpld_labels.interop.settings import ImportOptions
from tests.lpld_labels.interop.label_folders import write_fkd, write_images

GREY = (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mean": GREY, "std": (0.0, 0.0, 0.0)}, "std is wrong"),
        ({"mean": GREY, "std": (math.nan,) * 3}, "std is wrong"),
        ({"mean": (math.inf, 0.0, 0.0), "std": GREY}, "mean is wrong"),
        ({"mean": GREY}, "give both"),
        ({"output_size": 99_999_999}, "output size is wrong.*<= 65535"),
        ({"output_size": 0}, "output size is wrong"),
        ({"classes": 99_999_999_999}, "classes is wrong"),
        ({"batch_size": 99_999_999_999}, "batch size is wrong"),
        ({"sampler_seed": 10**30}, "sampler seed is wrong"),
        ({"temperature": math.inf}, "temperature is wrong"),
        ({"temperature": math.nan}, "temperature is wrong"),
        ({"teachers": ("a", "b\udcff")}, r"teachers is wrong.*b\\udcff"),
    ],
)
def test_what_no_pool_can_say_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        ImportOptions(**options)


def test_batches_that_no_reader_decodes_are_refused(tmp_path: Path) -> None:
    """Each number is within its own limit."""
    images = write_images(tmp_path / "images")
    write_fkd(tmp_path / "labels", images)
    options = ImportOptions(classes=1 << 20, batch_size=64)
    with pytest.raises(InvalidArgumentError, match="field 'batch_size' is wrong"):
        import_labels(tmp_path / "labels", tmp_path / "pool", images=images, options=options)
    assert not (tmp_path / "pool").exists()
