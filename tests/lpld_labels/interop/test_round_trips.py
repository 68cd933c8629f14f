"""G-VBSM and FKD folders: written, and imported again as the same pool."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lpld_labels import PoolReader, PoolWriter
from lpld_labels.errors import LabelSourceError
from lpld_labels.interop.exporting import export_pool
from lpld_labels.interop.importing import import_labels
from lpld_labels.interop.settings import ExportOptions, ImportOptions
from tests.factories import make_batch, make_header, make_images
from tests.lpld_labels.interop.label_folders import CLASSES, write_epochs, write_fkd, write_images


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


@pytest.mark.parametrize("label_type", ["hard", "smoothing", "marginal"])
@pytest.mark.parametrize("half", [False, True])
def test_fkd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label_type: str, half: bool) -> None:
    images = write_images(tmp_path / "images")
    contents = write_fkd(tmp_path / "labels", images, half=half)
    for name, content in contents.items():
        if label_type == "hard":
            content[2] = content[2][:, 0, 0].astype(np.int64)
        elif label_type == "smoothing":
            content[2] = content[2][:, :, 0]
        torch.save(content, tmp_path / "labels" / "train" / f"{name}.tar")
    options = ImportOptions(classes=CLASSES, batch_size=8)
    first = import_labels(tmp_path / "labels", tmp_path / "pool", images=images, options=options)
    # Images are gathered in groups: eight at a time here.
    monkeypatch.setattr("lpld_labels.interop.export_images.HELD_BYTES", 1)
    with PoolReader(tmp_path / "pool") as pool:
        report = export_pool(pool, tmp_path / "out", label_format="fkd")
    assert (report.batches, report.rows) == (15, 100)
    for name, (coords, flips, labels) in contents.items():
        found = torch.load(tmp_path / "out" / "train" / f"{name}.tar")
        # Half-precision crops come back as the pixels they stood for.
        assert np.abs(found[0].numpy() - coords).max() <= (1e-3 if half else 0)
        assert np.array_equal(found[1].numpy(), flips)
        assert (found[2].numpy().dtype, found[2].shape) == (labels.dtype, labels.shape)
        assert np.array_equal(found[2].numpy(), labels)
    again = import_labels(tmp_path / "out", tmp_path / "again", images=images, options=options)
    assert (again.format, again.content_digest) == ("fkd", first.content_digest)


def test_fkd_of_logits(tmp_path: Path) -> None:
    """Views that were not mixed: softmax, then the k largest; the rest is what they leave of 1."""
    images = write_images(tmp_path / "images")
    source = write_epochs(tmp_path / "labels", epochs=2, mix="none", ids_file=True)
    import_labels(source, tmp_path / "pool", images=images)
    with PoolReader(tmp_path / "pool") as pool:
        with pytest.raises(LabelSourceError, match="give --top-k"):
            export_pool(pool, tmp_path / "out", label_format="fkd")
        export_pool(pool, tmp_path / "out", label_format="fkd", options=ExportOptions(top_k=5))
        options = ImportOptions(classes=CLASSES, batch_size=8)
        import_labels(tmp_path / "out", tmp_path / "again", images=images, options=options)
        with PoolReader(tmp_path / "again") as again:
            ours = {
                (int(image), crop.tobytes()): torch.from_numpy(labels.astype(np.float32)).softmax(0)
                for batch in pool
                for image, crop, labels in zip(batch.images, batch.crops, batch.labels, strict=True)
            }
            assert again.manifest.counts.rows == pool.manifest.counts.rows == len(ours)
            for batch in again:
                for image, crop, labels in zip(batch.images, batch.crops, batch.labels, strict=True):
                    expected = ours[int(image), crop.tobytes()]
                    top = expected.topk(5)
                    rest = (1 - top.values.sum()) / (CLASSES - 5)
                    full = torch.full((CLASSES,), float(rest)).scatter(0, top.indices, top.values)
                    torch.testing.assert_close(torch.tensor(labels), full, atol=1e-6, rtol=1e-5)


def test_fkd_cannot_hold_mixed_views_or_pruned_pools(tmp_path: Path) -> None:
    for name, mix, batches, message in (
        ("mixed", "cutmix", 7, "crops and flips alone"),
        ("pruned", "none", 3, "different numbers of crops"),
    ):
        header = make_header(mix=mix)
        with PoolWriter(tmp_path / name, header=header, images=make_images()) as writer:
            for batch in range(batches):
                writer.append(make_batch(0, batch, mix=mix))
            writer.commit()
        with PoolReader(tmp_path / name) as pool, pytest.raises(LabelSourceError, match=message):
            export_pool(pool, tmp_path / "out", label_format="fkd", options=ExportOptions(top_k=5))
