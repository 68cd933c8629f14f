"""A quick run of benchmarks/storage, and that its numbers follow from files."""

import zipfile
from pathlib import Path

import pytest
import torch

from benchmarks.common.label_source import REAL_LABELS, LabelSource
from benchmarks.common.pickle_layout import save_pickle_batch
from benchmarks.storage.materialise import materialise
from benchmarks.storage.measure import Measurement
from benchmarks.storage.spec import IMAGENET_1K, TINY_IMAGENET
from tests.benchmarks.conftest import QuickRun, assert_drawn


@pytest.mark.thorough
def test_measured_sizes_match_the_paper_and_ours_are_smaller(quick_run: QuickRun, tmp_path: Path) -> None:
    results = quick_run("benchmarks.storage.__main__", "--png", str(tmp_path / "chart.png"))
    assert_drawn(tmp_path / "chart.png")
    assert results["wrong"] == []
    smallest = {(r["dataset"], r["layout"]): r["measured"] for r in results["rows"] if r["ratio"] == 1}
    assert smallest["ImageNet-1K", "original"] == pytest.approx(5.67, rel=0.01)
    assert smallest["ImageNet-1K", "klt"] < smallest["ImageNet-1K", "original"] / 8
    for rate in results["components"]["rates"]:
        assert rate["rate"] == pytest.approx(rate["paper"], rel=0.02)
    for row in results["class_statistics"]:
        assert row["channels"] == 4800
        assert row["together"] == pytest.approx(row["together_paper"], rel=0.001)
    # The 21K row's total follows from a ResNet-18; how the paper splits it does not.
    *matching, large = results["class_statistics"]
    assert all(abs(row["model"] - row["model_paper"]) < 0.02 for row in matching)
    assert large["model"] < 0.3 * large["model_paper"]


def test_pickled_batches_have_the_reference_programs_layout(tmp_path: Path, shared_data: Path) -> None:
    for name, dataset in (("lpld_in1k", IMAGENET_1K), ("lpld_tiny", TINY_IMAGENET)):
        theirs = shared_data / "reference_pools" / name / "epoch_0" / "batch_0.tar"
        reference = torch.load(theirs, weights_only=False)
        source = LabelSource.load(classes=dataset.classes)
        (batch,) = source.batches(
            1, rows=len(reference[0]), augmentation=dataset.augmentation, images=10, per_epoch=1
        )
        size = save_pickle_batch(tmp_path / "batch.tar", batch, side=dataset.side)
        ours = torch.load(tmp_path / "batch.tar", weights_only=False)
        assert [type(part) for part in ours] == [type(part) for part in reference]
        for part, other in zip(ours, reference, strict=True):
            if isinstance(part, torch.Tensor):
                assert (part.dtype, part.shape) == (other.dtype, other.shape)
        assert size == (tmp_path / "batch.tar").stat().st_size
        assert _content(tmp_path / "batch.tar") == _content(theirs)


def test_scaling_agrees_with_a_pool_written_in_whole(tmp_path: Path) -> None:
    measurement = Measurement(REAL_LABELS, IMAGENET_1K, tmp_path, batches=2)
    found = materialise(measurement, tmp_path / "whole", epochs=1)
    assert [row["layout"] for row in found] == ["original", "f16", "klt"]
    assert abs(found[0]["deviation"]) < 0.001
    # Noise on repeated rows and the image table of a single epoch weigh a little.
    assert abs(found[1]["deviation"]) < 0.05


def _content(archive: Path) -> list[int]:
    """Return the sizes of what a file of torch.save holds; what torch itself adds depends on its release."""
    with zipfile.ZipFile(archive) as entries:
        return sorted(entry.file_size for entry in entries.infolist() if "/data/" in entry.filename)
