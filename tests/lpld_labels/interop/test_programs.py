"""Folders as the programs of 2024 to 2026 write them, imported: same labels, images and views, or refused."""

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lpld_core.relabel.verify_teacher import verify_with_teacher
from lpld_labels import PoolReader
from lpld_labels.errors import (
    ImageMismatchError,
    InvalidBatchError,
    LabelFileError,
    LabelSourceError,
    UnsafePickleError,
)
from lpld_labels.format.manifest import ENSEMBLE_WORDS
from lpld_labels.format.strict_json import to_json
from lpld_labels.interop.batch_file import read_batches
from lpld_labels.interop.importing import import_labels
from lpld_labels.interop.layouts import CIFAR, HALD, HEADER_FILE, IMAGENET
from lpld_labels.interop.pixels import crops_in_pixels
from lpld_labels.interop.settings import ImportOptions
from lpld_labels.interop.torch_file import read_id_lists
from tests.lpld_labels.interop.label_folders import write_epochs, write_hald, write_images
from tests.lpld_labels.interop.restated import image_files, mixed, normalised, replayed, small_teacher
from tests.lpld_labels.interop.test_torch_file import save
from tests.trust.children import watched

PROGRAMS: dict[str, dict[str, Any]] = {
    "edc": {"ids_in_batch": True, "patches": True, "classes": 10, "size": 224},
    "prism": {"ids_in_batch": True, "classes": 1000, "size": 224},
    "cudd": {},
    "fadrm": {},
    "cv-dd": {},
    "wmdd": {"weights": True},
}
"""Program -> how `write_epochs` writes its layout. CUDD, FADRM and CV-DD write SRe2L's."""
LAYOUT = {"edc": "edc", "prism": "gvbsm", "wmdd": "wmdd"}
DROP = ImportOptions(drop_weights=True)


def written(root: Path, program: str, **changes: Any) -> tuple[Path, Path]:
    how = {"epochs": 2, "classes": 20, "size": 32, **PROGRAMS[program], **changes}
    images = write_images(root / "images", size=how["size"])
    return write_epochs(root / "labels", **how), images


@pytest.mark.parametrize("program", PROGRAMS)
def test_labels_images_and_views_are_those_of_the_files(tmp_path: Path, program: str) -> None:
    source, images = written(tmp_path, program)
    reports = [
        import_labels(source, tmp_path / name, images=images, label_format=name, options=DROP)
        for name in ("auto", program)
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
    "weights for some": ("wmdd", lambda b: [*b[:6], b[6][1:]], r"\[6\] weights is wrong.*floats \[8\]"),
    "a list of weights": ("wmdd", lambda b: [*b[:6], b[6].tolist()], r"\[6\] weights.*got list"),
    "integers for weights": ("wmdd", lambda b: [*b[:6], b[6].int()], r"\[6\] weights"),
    "no weights": ("wmdd", lambda b: b[:6], "expected a list of 7 items, got a list of 6"),
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
        import_labels(source, tmp_path / "pool", images=images, options=DROP)
    assert "batch_1.tar" in str(caught.value)
    report = import_labels(source, tmp_path / "pool", images=images, options=DROP, skip_bad=True)
    assert (len(report.holes), report.batches) == (1, 2)


def test_edc_needs_square_images(tmp_path: Path) -> None:
    source, images = written(tmp_path, "edc", epochs=1)
    odd = images / "class00" / "image000.png"
    Image.fromarray(np.zeros((224, 225, 3), np.uint8)).save(odd)
    with pytest.raises(ImageMismatchError, match=r"image000\.png.*not square|not square.*image000\.png"):
        import_labels(source, tmp_path / "pool", images=images)


@pytest.mark.parametrize("classes", [10, 200])
def test_wmdd_normalises_all_its_data_sets_alike(tmp_path: Path, classes: int) -> None:
    source, images = written(tmp_path, "wmdd", classes=classes)
    import_labels(source, tmp_path / "pool", images=images, options=DROP)
    with PoolReader(tmp_path / "pool") as pool:
        assert pool.header.teachers[0].mean == IMAGENET.mean


def test_weights_are_dropped_only_on_demand(tmp_path: Path) -> None:
    source, images = written(tmp_path, "wmdd")
    with pytest.raises(LabelSourceError, match=r"cannot store weights of rows.*--drop-weights"):
        import_labels(source, tmp_path / "pool", images=images)
    assert not (tmp_path / "pool").exists()
    report = import_labels(source, tmp_path / "pool", images=images, options=DROP)
    assert any("weights are dropped" in line for line in report.odd)
    with PoolReader(tmp_path / "pool") as pool:
        assert pool.header.lineage[-1].parameters["settings"]["drop_weights"] is True


@pytest.fixture
def hald(tmp_path: Path) -> tuple[Path, Path]:
    return write_hald(tmp_path / "labels"), write_images(tmp_path / "images")


@pytest.mark.parametrize("crops", ["labelled", "replayed"])
def test_hald(tmp_path: Path, crops: Any) -> None:
    """Its trainer rounds a float16 fraction times the side down, so many of its crops are off by a pixel."""
    source = write_hald(tmp_path / "labels", classes=1000, size=224)
    images = write_images(tmp_path / "images", size=224)
    report = import_labels(source, tmp_path / "pool", images=images, options=ImportOptions(crops=crops))
    assert (report.format, report.batches, report.rows, report.holes) == ("hald", 6, 40, ())
    whose = "the teacher" if crops == "labelled" else "HALD's trainer"
    assert any(f"crops of {whose}" in line for line in report.assumed)
    stored = torch.load(source / "sampler_indices_dict.pt", weights_only=True)
    moved = 0
    with PoolReader(tmp_path / "pool") as pool:
        assert (pool.header.label_kind, pool.header.teachers[0].mean) == ("probabilities", IMAGENET.mean)
        assert pool.header.lineage[-1].parameters["temperature"] == 20
        for key in pool.keys:
            saved = torch.load(source / f"epoch_{key.epoch}.tar", weights_only=False)[key.batch]
            views = pool.read_views(key)
            assert views.images.tolist() == stored[str(key.epoch)][8 * key.batch : 8 * key.batch + 8]
            assert pool.read_labels(key).tobytes() == saved[5].numpy().tobytes()
            down = [[int(part.float().item() * 224) for part in row] for row in saved[0]]
            labelled = (saved[0].double() * 224).round().int().tolist()
            moved += down != labelled
            assert views.crops.tolist() == (down if crops == "replayed" else labelled)
            assert views.flips.tolist() == saved[1].tolist()
            assert views.mix is not None
            assert (views.mix.partner.tolist(), views.mix.strength) == (saved[2].tolist(), saved[3])
    assert moved == 6


def test_replayed_crops_of_hald_are_rounded_down() -> None:
    tall = np.arange(1, 226)
    stored = (np.stack([tall - 1, tall - 1, 226 - tall, 226 - tall], 1) / 225).astype(np.float16)
    sides, images = np.full((225, 4), 225), np.zeros(225, np.int32)
    expected = [[int(float(part) * 225) for part in row] for row in stored.astype(np.float32)]
    keep = np.array([min(row[2:]) > 0 for row in expected])
    found = crops_in_pixels(stored[keep], sides[keep], images[keep], where="", down=True)
    assert found.tolist() == np.array(expected)[keep].tolist()
    exact = crops_in_pixels(stored[keep], sides[keep], images[keep], where="")
    assert 0.2 < (found != exact).mean() < 0.8


def test_a_teacher_confirms_hald(tmp_path: Path, hald: tuple[Path, Path]) -> None:
    source, images = hald
    teacher, other = (small_teacher(100, mean=CIFAR.mean, std=CIFAR.std, seed=seed) for seed in (1, 2))
    files = image_files(images)
    stored = torch.load(source / "sampler_indices_dict.pt", weights_only=True)
    for epoch, ids in stored.items():
        batches = torch.load(source / f"epoch_{epoch}.tar", weights_only=False)
        for number, saved in enumerate(batches):
            pixels = replayed(saved, [files[i] for i in ids[8 * number : 8 * number + 8]], 32)
            with torch.no_grad():
                logits = teacher.model(mixed(normalised(pixels, teacher), saved))
            saved[5] = (logits / 20).softmax(1).half()
        torch.save(batches, source / f"epoch_{epoch}.tar")
    import_labels(source, tmp_path / "pool", images=images)
    with PoolReader(tmp_path / "pool") as pool:
        assert verify_with_teacher(pool, images, teacher, batches=6).agrees
        assert not verify_with_teacher(pool, images, other, batches=6).agrees


HALD_HOSTILE: dict[str, tuple[Callable[[list[Any]], Any], str, int]] = {
    "a dictionary": (lambda b: {"0": b}, "EMPTY_DICT", 0),
    "a tensor": (lambda b: torch.zeros(3), "not the batches of an epoch", 0),
    "no batches": (lambda b: [], "expected a list of batches, got a list of 0", 0),
    "two batches": (lambda b: b[:2], "differ in their number of batches.*expected 3, got 2", 0),
    "a batch of five": (lambda b: [b[0], b[1][:5], b[2]], "expected a list of 6 items, got a list of 5", 2),
    "a ragged batch": (lambda b: [b[0], [[1], [2, [3]], *b[1][2:]], b[2]], r"\[0\] coords", 2),
    "logits": (lambda b: [b[0], [*b[1][:5], b[1][5] * 100], b[2]], "not probabilities", 2),
    "negative": (lambda b: [b[0], [*b[1][:5], -b[1][5]], b[2]], "probabilities of at least 0", 2),
}


@pytest.mark.parametrize("name", HALD_HOSTILE)
def test_epochs_of_the_wrong_form(tmp_path: Path, hald: tuple[Path, Path], name: str) -> None:
    """A damaged file leaves out its epoch, a damaged batch only itself."""
    change, message, left = HALD_HOSTILE[name]
    source, images = hald
    spoil(source / "epoch_1.tar", change)
    with pytest.raises((LabelFileError, InvalidBatchError), match=message) as caught:
        import_labels(source, tmp_path / "pool", images=images)
    assert "epoch_1.tar" in str(caught.value) or "epoch 1 batch 1" in str(caught.value)
    report = import_labels(source, tmp_path / "pool", images=images, skip_bad=True)
    assert (len(report.holes), report.batches) == (1, 3 + left)
    assert report.holes[0]["file"] == "epoch_1.tar" + ", batch 1" * bool(left)


class Runs:
    def __reduce__(self) -> Any:
        return os.getcwd, ()


IDS: dict[str, tuple[object, str]] = {
    "code": ({"0": Runs()}, "posix.getcwd|GLOBAL"),
    "a list": ([[1, 2]], "not lists of image ids"),
    "tensors": ({"0": torch.arange(20)}, "pickle contains"),
    "large numbers": ({2**70: [1]}, "the instruction LONG1"),
    "nested": ({"0": [[1], 2]}, "not lists of image ids"),
    "words": ({"0": ["1"]}, "not lists of image ids"),
    "number keys": ({0: list(range(20))}, "not lists of image ids"),
    "negative": ({"0": [-1] * 20, "1": [0] * 20}, "'0' are damaged"),
    "no epoch 1": ({"0": list(range(20))}, "no image ids for epoch 1"),
    "another name": ({"0": [1], "x": [1]}, "'x' is not a number"),
    "an image too many": ({"0": list(range(1, 21)), "1": [0]}, "labels refer to image 20"),
    "too many": ({"0": [1] * (1 << 22)}, "instructions"),
}


@pytest.mark.parametrize("name", IDS)
def test_ids_of_the_wrong_form(tmp_path: Path, hald: tuple[Path, Path], name: str) -> None:
    content, message = IDS[name]
    source, images = hald
    torch.save(content, source / "sampler_indices_dict.pt")
    errors = (LabelSourceError, LabelFileError, ImageMismatchError, UnsafePickleError)
    with pytest.raises(errors, match=message):
        import_labels(source, tmp_path / "pool", images=images, skip_bad=True)
    (source / "sampler_indices_dict.pt").unlink()
    with pytest.raises(LabelSourceError, match="image ids are missing"):
        import_labels(source, tmp_path / "pool", images=images)


def test_lists_without_ids(tmp_path: Path, hald: tuple[Path, Path]) -> None:
    source, images = hald
    torch.save({"0": [], "1": []}, source / "sampler_indices_dict.pt")
    options = ImportOptions(allow_extra_images=True)
    with pytest.raises(LabelSourceError, match="lists of image ids are empty"):
        import_labels(source, tmp_path / "pool", images=images, options=options)


def test_the_header_of_an_export_does_not_apply_to_hald(tmp_path: Path, hald: tuple[Path, Path]) -> None:
    """Its labels are probabilities. Exported labels are logits."""
    source, images = hald
    import_labels(source, tmp_path / "pool", images=images)
    with PoolReader(tmp_path / "pool") as pool:
        header = pool.header
    (source / HEADER_FILE).write_bytes(to_json(asdict(replace(header, lineage=()))))
    import_labels(source, tmp_path / "again", images=images)
    with PoolReader(tmp_path / "again") as pool:
        assert pool.header.label_kind == "probabilities"


def test_an_epoch_with_too_many_instructions(tmp_path: Path, hald: tuple[Path, Path]) -> None:
    source, images = hald
    torch.save([[1.5] * 1_100_000], source / "epoch_0.tar")
    with pytest.raises(LabelFileError, match=r"more than \d+ (instructions|values)"):
        import_labels(source, tmp_path / "pool", images=images, label_format="hald")


BOMBS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "lists": (b"](" + b"]" * 1_499_990 + b"e.", lambda path: read_batches(path, HALD.file)),
    "floats": (b"](" + b"G?aaaaaaa" * 1_499_990 + b"e.", lambda path: read_batches(path, HALD.file)),
    "dictionaries": (b"](" + b"}" * ((1 << 22) - 6) + b"e.", read_id_lists),
    "numbers": (b"](" + b"Jaaaa" * ((1 << 22) - 6) + b"e.", read_id_lists),
    "one key": (b"}(" + b"Jaaaa" * ((1 << 22) - 6) + b"u.", read_id_lists),
}


LARGEST = b"](" + b"]\x94" * 749_990 + b"e."
"""As many lists as an epoch may have, each in the memo."""


def test_the_largest_epoch_stays_within_its_bounds(tmp_path: Path) -> None:
    path = save(tmp_path / "epoch_0.tar", b"\x80\x02" + LARGEST)
    megabytes = 700 + 4 * path.stat().st_size // 1_000_000
    found = watched(lambda: read_batches(path, HALD.file) and None, megabytes=megabytes, seconds=30.0)
    assert found.kind == "well", found


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_of_an_epoch_stays_within_its_bounds(tmp_path: Path, name: str) -> None:
    program, read = BOMBS[name]
    path = save(tmp_path / "epoch_0.tar", b"\x80\x02" + program)
    megabytes = 700 + 4 * path.stat().st_size // 1_000_000
    found = watched(lambda: read(path) and None, megabytes=megabytes, seconds=30.0)
    assert found.kind in ("refused", "well"), found
