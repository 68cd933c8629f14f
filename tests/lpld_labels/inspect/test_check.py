import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import LabelPoolError, PoolCorruptError
from lpld_labels.inspect.check import check_pool
from tests.factories import edit_manifest, make_batches, write_pool
from tests.golden.crafting.crafted import Crafted, place_groups

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"


def whole(path: Path) -> bool:
    try:
        return check_pool(path).whole
    except LabelPoolError:
        return False


def changed(tmp_path: Path, name: str, place: tuple[str | int, ...], value: object) -> Path:
    """Return a copy of a golden pool whose manifest says something else at one place."""
    path = tmp_path / name
    shutil.copytree(GOLDEN / name, path)
    assert whole(path)
    manifest = json.loads((path / "pool.json").read_text())
    holder: Any = manifest
    for key in place[:-1]:
        holder = holder[key]
    assert holder[place[-1]] != value
    holder[place[-1]] = value
    (path / "pool.json").write_text(json.dumps(manifest))
    return path


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("f16", ("label_kind",), "probabilities"),
        ("topk-3", ("codec", "parameters", "label_kind"), "probabilities"),
        ("klt", ("codec", "parameters", "label_kind"), "probabilities"),
        ("f16", ("augmentation", "resize"), "pil"),
        ("f16", ("augmentation", "output_height"), 17),
        ("f16", ("teachers", 0, "mean", 0), 0.25),
        ("f16", ("teachers", 0, "std", 2), 0.5),
        ("f16", ("classes",), 4),
        ("f16-drawn", ("seed",), 1),
        ("f16-drawn", ("augmentation", "crop_scale", 0), 0.5),
        ("f16-drawn", ("augmentation", "flip_probability"), 0.25),
    ],
)
def test_changes_are_noticed(tmp_path: Path, name: str, place: tuple[str | int, ...], value: object) -> None:
    assert not whole(changed(tmp_path, name, place, value))


@pytest.mark.parametrize(
    ("place", "value"), [(("seed",), 1), (("augmentation", "crop_scale", 0), 0.5), (("created_by",), "me")]
)
def test_description_may_change(tmp_path: Path, place: tuple[str | int, ...], value: object) -> None:
    # SPEC.md: the views themselves say what was drawn, and nobody may refuse a pool because the two differ.
    assert whole(changed(tmp_path, "f16", place, value))


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    write_pool(tmp_path / "pool", make_batches(3, 4, rows=16, classes=20), codec="f16:plain").close()
    return tmp_path / "pool"


@pytest.mark.parametrize("name", ["views/*", "labels/*", "images.parquet", "batches-*.parquet"])
@pytest.mark.parametrize("damage", ["is missing", "wrong size", "wrong digest"])
def test_every_damaged_file_is_named(pool: Path, name: str, damage: str) -> None:
    (file,) = pool.glob(name)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "is missing":
        file.unlink()
    else:
        file.write_bytes(data[: len(data) // 2] if damage == "wrong size" else data)
    assert any(file.name in p.file and damage in p.message for p in check_pool(pool).problems)


def forge(path: Path, role: str, column: str, row: int, value: Any) -> None:
    """Change a file and make manifest and index agree with it, as a buggy writer would."""
    crafted = Crafted(path)
    crafted.change(role, column, lambda values: values.__setitem__(row, value))
    if role == "labels":
        place_groups(crafted)
    crafted.save(path)


HALVES = [np.float16(1)] * 20
"""As every version of Arrow takes numbers for float16."""


@pytest.mark.parametrize(
    ("folder", "column", "row", "value", "words"),
    [
        ("views", "image", 5, 5000, "image"),
        ("views", "crop_top", 5, 47, "outside its image"),
        ("views", "slot", 5, 4, "disagrees with the batch index"),
        ("views", "epoch", 40, 2, "disagrees with the batch index"),
        ("views", "mix_slot", 5, 16, "partner"),
        ("views", "mix_strength", 5, 1.5, "mix_strength"),
        ("views", "mix_right", 5, 33, "mix box"),
        ("labels", "labels", 5, [np.float16("nan")] * 20, "not finite"),
        ("labels", "labels", 5, HALVES, "digest of the batch"),
        ("labels", "labels", 5, HALVES[1:], "number of values"),
    ],
)
def test_impossible_rows(pool: Path, folder: str, column: str, row: int, value: Any, words: str) -> None:
    forge(pool, folder, column, row, value)
    found = check_pool(pool).problems
    assert found
    assert all(p.file.startswith(folder) for p in found), "a file to restore has to be the right one"
    assert any(words in p.message for p in found), found


def test_flips_that_changed_are_found(pool: Path) -> None:
    with PoolReader(pool) as reader:
        flipped = not reader.views_at(0).flips[5]
    forge(pool, "views", "flip", 5, flipped)
    assert any("differ from those that were labelled" in p.message for p in check_pool(pool).problems)
    # Row 5 is of the first batch, which cannot be read, every time; other batches are as they were.
    with PoolReader(pool) as reader:
        assert len(list(reader.iterate(reader.keys[1:]))) == len(reader) - 1
        for _ in range(2):
            with pytest.raises(PoolCorruptError, match="differ from those that were labelled"):
                reader.read_views(reader.keys[0])


def test_files_left_over_and_a_lying_manifest_are_reported(pool: Path) -> None:
    (pool / "views" / "stray.parquet").write_bytes(b"x")
    assert [p.file for p in check_pool(pool).problems] == ["views/stray.parquet"]
    edit_manifest(pool, content_digest="0" * 64)
    assert any("content_digest" in p.message for p in check_pool(pool).problems)
    edit_manifest(pool, counts__rows=999)
    with pytest.raises(LabelPoolError, match=r"counts\.rows"):
        check_pool(pool)


def test_progress_ends_at_the_end(pool: Path) -> None:
    calls: list[tuple[int, int]] = []
    assert check_pool(pool, progress=lambda done, total: calls.append((done, total))).whole
    assert calls[-1][0] == calls[-1][1]
    assert len(calls) == 4, "once for each file but the manifest"
    (pool / "images.parquet").write_bytes(b"damaged")
    check_pool(pool, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1]
