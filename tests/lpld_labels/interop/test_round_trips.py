"""G-VBSM folders: written, and imported again as the same pool."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lpld_labels import PoolReader, PoolWriter
from lpld_labels.errors import LabelSourceError
from lpld_labels.interop.exporting import export_pool
from lpld_labels.interop.importing import import_labels
from lpld_labels.interop.settings import ImportOptions
from tests.factories import make_batch, make_header, make_images
from tests.lpld_labels.interop.label_folders import write_epochs, write_images


@pytest.mark.parametrize("mix", ["none", "mixup", "cutmix"])
def test_gvbsm(tmp_path: Path, mix: str) -> None:
    images = write_images(tmp_path / "images")
    source = write_epochs(tmp_path / "labels", epochs=2, ids_in_batch=True, mix=mix)
    options = ImportOptions(ensemble="average")
    first = import_labels(source, tmp_path / "pool", images=images, options=options)
    with PoolReader(tmp_path / "pool") as pool:
        report = export_pool(pool, tmp_path / "out", label_format="gvbsm")
    assert (report.batches, report.rows) == (6, 40)
    files = sorted(path.relative_to(source) for path in source.rglob("*.tar"))
    assert files == sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*.*"))
    for file in files:
        ours, theirs = torch.load(tmp_path / "out" / file), torch.load(source / file, weights_only=False)
        for place in (0, 1, 2, 5, 6):
            assert ours[place] is theirs[place] or torch.equal(ours[place], theirs[place])
            assert mix == "none" or ours[place].dtype == theirs[place].dtype
    again = import_labels(tmp_path / "out", tmp_path / "again", images=images, options=options)
    assert (again.format, again.content_digest) == ("gvbsm", first.content_digest)


def test_gvbsm_takes_whole_epochs_alone(tmp_path: Path) -> None:
    """Its trainer counts through all images and takes file after file."""
    with PoolWriter(tmp_path / "pool", header=make_header(), images=make_images()) as writer:
        for batch in range(6):
            writer.append(make_batch(0, batch))
        writer.commit()
    with (
        PoolReader(tmp_path / "pool") as pool,
        pytest.raises(LabelSourceError, match="all 50 images in every epoch"),
    ):
        export_pool(pool, tmp_path / "out", label_format="gvbsm")
