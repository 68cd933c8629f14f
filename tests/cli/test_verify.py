"""`lpld-labels verify`: whole pools pass, damage of every kind is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result

from lpld_labels import PoolReader
from lpld_labels.errors import PoolCorruptError
from tests.factories import make_batches, write_pool
from tests.golden.crafting.crafted import Crafted
from tests.golden.crafting.payload_cases import place_groups

Cli = Callable[..., Result]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_pool(tmp_path / "pool", make_batches(3, 4, rows=16, classes=20), codec="f16:plain").close()
    return tmp_path / "pool"


def only(path: Path, folder: str) -> Path:
    (file,) = (path / folder).iterdir()
    return file


def problems(cli: Cli, path: Path) -> list[dict[str, str]]:
    result = cli("verify", path, "--json")
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    found: list[dict[str, str]] = json.loads(result.stdout)["problems"]
    return found


def test_a_whole_pool(cli: Cli, path: Path) -> None:
    result = cli("verify", path)
    assert result.exit_code == 0
    assert result.stdout.startswith("whole: 5 files")
    assert json.loads(cli("verify", path, "--json").stdout)["whole"] is True


@pytest.mark.parametrize("name", ["views", "labels", "images.parquet", "batches-*.parquet"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_every_damaged_file_is_named(cli: Cli, path: Path, name: str, damage: str) -> None:
    (file,) = path.glob(name if "." in name else f"{name}/*")
    data = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    words = {"missing": "is missing", "truncated": "wrong size", "flipped": "not the one"}[damage]
    assert any(file.name in p["file"] and words in p["message"] for p in problems(cli, path))


def test_all_damaged_files_are_named_not_only_the_first(cli: Cli, path: Path) -> None:
    for folder in ("views", "labels"):
        only(path, folder).unlink()
    assert {p["file"].split("/")[0] for p in problems(cli, path)} == {"views", "labels"}


def forge(path: Path, role: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a file and make manifest and index agree with it, as a buggy writer would."""
    pool = Crafted(path)
    pool.put(role, change(pool.table(role)))
    if role == "labels":
        place_groups(pool)
    pool.save(path)


def halves(count: int, value: float) -> list[np.float16]:
    """Return numbers as every version of Arrow takes them for float16."""
    return [np.float16(value)] * count


def changed(column: str, row: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(column)
        values = table[column].to_pylist()
        values[row] = value
        return table.set_column(
            place, table.schema.field(place), pa.array(values, table.schema.field(place).type)
        )

    return change


@pytest.mark.parametrize(
    ("folder", "change", "words"),
    [
        ("views", changed("image", 5, 5000), "image"),
        ("views", changed("crop_top", 5, 47), "outside its image"),
        ("views", changed("slot", 5, 4), "is not what the index says"),
        ("views", changed("epoch", 40, 2), "is not what the index says"),
        ("views", changed("mix_slot", 5, 16), "partner"),
        ("views", changed("mix_strength", 5, 1.5), "mix_strength"),
        ("views", changed("mix_right", 5, 33), "mix box"),
        ("labels", changed("labels", 5, halves(20, float("nan"))), "not finite"),
        ("labels", changed("labels", 5, halves(20, 1.0)), "digest of the batch"),
        ("labels", changed("labels", 5, halves(19, 1.0)), "number of values"),
    ],
)
def test_rows_that_cannot_be_right_are_found(
    cli: Cli, path: Path, folder: str, change: Callable[[pa.Table], pa.Table], words: str
) -> None:
    forge(path, folder, change)
    found = problems(cli, path)
    # Whoever is told to restore a file must be told the right one.
    assert all(p["file"].startswith(folder) for p in found), found
    assert any(words in p["message"] for p in found), found


def test_flips_that_changed_are_found(cli: Cli, path: Path) -> None:
    flip = not bool(np.asarray(pq.read_table(only(path, "views"))["flip"])[5])
    forge(path, "views", changed("flip", 5, flip))
    assert any("not those that were labelled" in p["message"] for p in problems(cli, path))
    # Row 5 is of the first batch: whoever reads it is told, every time, and other batches are as they were.
    with PoolReader(path) as pool:
        assert len(list(pool.iterate(pool.keys[1:]))) == len(pool) - 1
        for _ in range(2):
            with pytest.raises(PoolCorruptError, match="not those that were labelled"):
                pool.read_views(pool.keys[0])


def test_files_left_over_from_a_crash_are_reported(cli: Cli, path: Path) -> None:
    (path / "views" / "stray.parquet").write_bytes(b"x")
    assert [p["file"] for p in problems(cli, path)] == ["views/stray.parquet"]


def test_a_lying_manifest(cli: Cli, path: Path) -> None:
    document = json.loads((path / "pool.json").read_text())
    document["content_digest"] = "0" * 64
    (path / "pool.json").write_text(json.dumps(document))
    assert any("content_digest" in p["message"] for p in problems(cli, path))
    document["counts"]["rows"] = 999
    (path / "pool.json").write_text(json.dumps(document))
    result = cli("verify", path)
    assert result.exit_code == 1
    assert "counts.rows" in result.stderr


def test_not_a_pool(cli: Cli, tmp_path: Path) -> None:
    result = cli("verify", tmp_path)
    assert result.exit_code == 1
    assert "no pool.json" in result.stderr
