"""Folders as the programs of 2024 to 2026 write them, imported: same labels, images and views, or refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lpld_labels import PoolReader
from lpld_labels.errors import ImageMismatchError, LabelFileError
from lpld_labels.format.manifest import ENSEMBLE_WORDS
from lpld_labels.interop.importing import ImportReport, import_labels
from lpld_labels.interop.layouts import IMAGENET
from lpld_labels.interop.settings import ImportOptions
from tests.lpld_labels.interop.label_folders import write_epochs, write_images

PROGRAMS: dict[str, dict[str, Any]] = {
    "edc": {"ids_in_batch": True, "patches": True, "classes": 10, "size": 224},
    "prism": {"ids_in_batch": True, "classes": 1000, "size": 224},
    "cudd": {},
    "fadrm": {},
    "cv-dd": {},
}
"""Program -> how `write_epochs` writes its layout. CUDD, FADRM and CV-DD write SRe2L's."""
LAYOUT = {"edc": "edc", "prism": "gvbsm"}


def written(root: Path, program: str, **changes: Any) -> tuple[Path, Path]:
    how = {"epochs": 2, "classes": 20, "size": 32, **PROGRAMS[program], **changes}
    images = write_images(root / "images", size=how["size"])
    return write_epochs(root / "labels", **how), images


@pytest.mark.parametrize("program", PROGRAMS)
def test_labels_images_and_views_are_those_of_the_files(tmp_path: Path, program: str) -> None:
    source, images = written(tmp_path, program)
    reports = [
        import_labels(source, tmp_path / name, images=images, label_format=name) for name in ("auto", program)
    ]
    assert [report.format for report in reports] == [LAYOUT.get(program, "sre2l")] * 2
    assert reports[0].content_digest == reports[1].content_digest
    side = PROGRAMS[program].get("size", 32)
    with PoolReader(tmp_path / "auto") as pool:
        assert len(pool) == 6
        for key in pool.keys:
            saved = torch.load(source / f"epoch_{key.epoch}" / f"batch_{key.batch}.tar", weights_only=False)
            views = pool.read_views(key)
            assert pool.read_labels(key).tobytes() == saved[5].numpy().tobytes()
            assert views.crops.tolist() == (saved[0].double() * side).round().int().tolist()
            assert views.flips.tolist() == saved[1].tolist()
            assert views.mix is not None
            assert views.mix.box is not None
            assert views.mix.partner.tolist() == saved[2].tolist()
            assert (views.mix.strength, list(views.mix.box)) == (saved[3], [int(edge) for edge in saved[4]])
            if "ids_in_batch" in PROGRAMS[program]:
                assert views.images.tolist() == saved[6].tolist()


@pytest.mark.parametrize(
    ("program", "rule", "resize"), [("edc", "average", "torch"), ("prism", "norm-scaled", "pil")]
)
def test_headers_of_several_teachers(tmp_path: Path, program: str, rule: Any, resize: str) -> None:
    source, images = written(tmp_path, program)
    report = import_labels(source, tmp_path / "pool", images=images)
    with PoolReader(tmp_path / "pool") as pool:
        header = pool.header
    assert (header.ensemble, header.augmentation.resize) == (ENSEMBLE_WORDS[rule], resize)
    assert (header.teachers[0].mean, header.label_kind) == (IMAGENET.mean, "logits")
    assert any("tensors" in line and "--resize" in line for line in report.assumed) == (program == "edc")


def test_labels_that_prism_scaled_by_row_are_noticed(tmp_path: Path) -> None:
    """Its programs for ResNet-50 and ResNet-101 do not combine teachers as the one for ResNet-18 does."""
    source, images = written(tmp_path, "prism")
    for path in source.rglob("*.tar"):
        content = torch.load(path, weights_only=False)
        labels = content[5].float()
        norm = labels.norm(dim=1, keepdim=True)
        content[5] = (labels / norm * norm.mean(0, keepdim=True)).half()
        torch.save(content, path)
    report = import_labels(source, tmp_path / "pool", images=images)
    assert any("same norm" in line for line in report.odd)
    with PoolReader(tmp_path / "pool") as pool:
        assert pool.header.ensemble not in (None, *ENSEMBLE_WORDS.values())
    options = ImportOptions(ensemble="average")
    import_labels(source, tmp_path / "told", images=images, options=options)
    with PoolReader(tmp_path / "told") as pool:
        assert pool.header.ensemble == ENSEMBLE_WORDS["average"]


HOSTILE: dict[str, tuple[str, Callable[[list[Any]], Any], str]] = {
    "shuffled": ("edc", lambda b: [*b[:7], b[7] + 1], r"\[7\] patches is wrong.*shuffles no patches"),
    "one row of patches": ("edc", lambda b: [*b[:7], b[7][:1]], r"\[7\] patches"),
    "a number for patches": ("edc", lambda b: [*b[:7], 0], r"\[7\] patches.*got int"),
    "float patches": ("edc", lambda b: [*b[:7], b[7].float()], r"\[7\] patches"),
    "no patches": ("edc", lambda b: b[:7], "expected a list of 8 items, got a list of 7"),
    "nine items": ("edc", lambda b: [*b, 0], "got a list of 9"),
    "float ids": ("edc", lambda b: [*b[:6], b[6].float(), b[7]], r"\[6\] images"),
    "a ragged list": ("edc", lambda b: [b[0], [True, [False]], *b[2:]], r"\[1\] flips.*got list"),
}


def spoil(path: Path, change: Callable[[list[Any]], Any]) -> None:
    torch.save(change(torch.load(path, weights_only=False)), path)


@pytest.mark.parametrize("name", HOSTILE)
def test_files_of_the_wrong_form(tmp_path: Path, name: str) -> None:
    program, change, message = HOSTILE[name]
    source, images = written(tmp_path, program, epochs=1)
    spoil(source / "epoch_0" / "batch_1.tar", change)
    with pytest.raises(LabelFileError, match=message) as caught:
        import_labels(source, tmp_path / "pool", images=images)
    assert "batch_1.tar" in str(caught.value)
    report: ImportReport = import_labels(source, tmp_path / "pool", images=images, skip_bad=True)
    assert (len(report.holes), report.batches) == (1, 2)


def test_edc_needs_square_images(tmp_path: Path) -> None:
    source, images = written(tmp_path, "edc", epochs=1)
    odd = images / "class00" / "image000.png"
    Image.fromarray(np.zeros((224, 225, 3), np.uint8)).save(odd)
    with pytest.raises(ImageMismatchError, match=r"image000\.png.*not square|not square.*image000\.png"):
        import_labels(source, tmp_path / "pool", images=images)
