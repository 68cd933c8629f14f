import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import LabelPoolError, PoolCorruptError
from lpld_labels.inspect.check import check_pool
from tests.factories import make_batches, write_pool
from tests.golden.crafting.crafted import Crafted
from tests.golden.crafting.payload_cases import place_groups

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


def forge(path: Path, role: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a file and make manifest and index agree with it, as a buggy writer would."""
    crafted = Crafted(path)
    crafted.put(role, change(crafted.table(role)))
    if role == "labels":
        place_groups(crafted)
    crafted.save(path)


def halves(count: int, value: float) -> list[np.float16]:
    """Return numbers as every version of Arrow takes them for float16."""
    return [np.float16(value)] * count


def cell(column: str, row: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(column)
        field, values = table.schema.field(place), table[column].to_pylist()
        values[row] = value(values[row]) if callable(value) else value
        return table.set_column(place, field, pa.array(values, field.type))

    return change


@pytest.mark.parametrize(
    ("folder", "change", "words"),
    [
        ("views", cell("image", 5, 5000), "image"),
        ("views", cell("crop_top", 5, 47), "outside its image"),
        ("views", cell("slot", 5, 4), "disagrees with the batch index"),
        ("views", cell("epoch", 40, 2), "disagrees with the batch index"),
        ("views", cell("mix_slot", 5, 16), "partner"),
        ("views", cell("mix_strength", 5, 1.5), "mix_strength"),
        ("views", cell("mix_right", 5, 33), "mix box"),
        ("labels", cell("labels", 5, halves(20, float("nan"))), "not finite"),
        ("labels", cell("labels", 5, halves(20, 1.0)), "digest of the batch"),
        ("labels", cell("labels", 5, halves(19, 1.0)), "number of values"),
    ],
)
def test_rows_that_cannot_be_right_are_found(
    pool: Path, folder: str, change: Callable[[pa.Table], pa.Table], words: str
) -> None:
    forge(pool, folder, change)
    found = check_pool(pool).problems
    assert found
    assert all(p.file.startswith(folder) for p in found), "a file to restore has to be the right one"
    assert any(words in p.message for p in found), found


def test_flips_that_changed_are_found(pool: Path) -> None:
    forge(pool, "views", cell("flip", 5, lambda flip: not flip))
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
    document = json.loads((pool / "pool.json").read_text())
    document["content_digest"] = "0" * 64
    (pool / "pool.json").write_text(json.dumps(document))
    assert any("content_digest" in p.message for p in check_pool(pool).problems)
    document["counts"]["rows"] = 999
    (pool / "pool.json").write_text(json.dumps(document))
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
