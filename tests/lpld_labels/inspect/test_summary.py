import io
from pathlib import Path

import numpy as np
import pytest
import torch

from lpld_labels.format import schema
from lpld_labels.inspect.summary import pickle_layout, summarise
from tests.factories import make_batch, make_batches, make_images, write_pool


@pytest.mark.parametrize("codec", ["f16", "f16:plain", "int8"])
def test_every_byte_is_accounted_for(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "pool"
    write_pool(path, make_batches(3, 4, cutout=True, patches=2), codec=codec).close()
    summary = summarise(path).as_json()
    expected = "format_version classes images epochs batches rows batch_size codec bytes ratio content_digest"
    assert set(summary) >= {*expected.split(), "lineage"}
    found = summary["bytes"]
    assert list(found["components"]) == list(schema.COMPONENTS)
    on_disk = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert sum(found["components"].values()) == found["total"] == on_disk
    assert found["logical_fp16"] == 12 * 8 * 10 * 2
    assert summary["ratio"] == pytest.approx(found["logical_fp16"] / on_disk, abs=1e-3)
    assert found["components"]["labels"] >= 12 * 8 * 10 * (1 if codec == "int8" else 1.5)


def test_coverage_is_that_of_the_views(tmp_path: Path) -> None:
    images = make_images(20, classes=10)
    batches = [make_batch(0, b, images=images, rows=8 if b < 2 else 3) for b in range(3)]
    write_pool(tmp_path / "pool", batches, images=images).close()
    summary = summarise(tmp_path / "pool").as_json()
    seen = np.concatenate([batch.images for batch in batches])
    views = np.bincount(seen, minlength=20)
    assert summary["views_per_image"] == {
        "minimum": views.min(),
        "median": float(np.median(views)),
        "maximum": views.max(),
    }
    assert summary["images_covered"] == len(np.unique(seen))
    assert summary["classes_covered"] == len(np.unique(images.classes[seen]))


@pytest.mark.parametrize(
    ("rows", "classes", "mixed"), [(128, 1000, True), (64, 200, False), (1024, 1000, True)]
)
def test_the_pickle_layout_is_estimated_within_one_percent(rows: int, classes: int, mixed: bool) -> None:
    sink = io.BytesIO()
    batch = [
        torch.zeros(rows, 4),
        torch.zeros(rows, dtype=torch.bool),
        torch.zeros(rows, dtype=torch.int64) if mixed else None,
        0.5 if mixed else None,
        [1, 2, 3, 4] if mixed else None,
        torch.zeros(rows, classes, dtype=torch.float16),
    ]
    torch.save(batch, sink)
    estimate = sum(pickle_layout(rows, 1, classes, mixed=mixed).values())
    written = len(sink.getvalue())
    if b".format_version" not in sink.getvalue():
        written += 320  # two small records that older torch did not write
    assert estimate == pytest.approx(written, rel=0.01)
