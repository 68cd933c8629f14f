"""Hostile pools, each read in a watched child: a clean refusal, little memory, little time, no signal."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard

from lpld_labels import PoolReader
from lpld_labels.errors import LabelPoolError, ManifestError, PoolCorruptError
from lpld_labels.format.limits import MAX_BATCH_SIZE, MAX_BATCH_VALUES, MAX_JSON_BYTES
from lpld_labels.inspect.check import check_pool
from tests.factories import edit_manifest
from tests.golden.crafting.crafted import Crafted, place_groups
from tests.independent_reader import Refused, verify
from tests.trust.children import Ending, watched

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
MEGABYTES, SECONDS = 512, 30


def _use(path: Path) -> None:
    """Verify a pool, and read all of it whatever verify says."""
    report = check_pool(path)
    with PoolReader(path) as pool:
        for number in range(len(pool)):
            pool.views_at(number)
            pool.labels_at(number)
    if not report.whole:
        raise PoolCorruptError(report.problems[0].message, where=report.problems[0].file)


def _ending(path: Path) -> Ending:
    return watched(lambda: _use(path), megabytes=MEGABYTES, seconds=SECONDS)


def _refused(path: Path, *words: str) -> None:
    ending = _ending(path)
    assert ending.kind == "refused", ending
    assert all(word in ending.said for word in words), ending


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "pool"
    shutil.copytree(GOLDEN / "f16-plain", target)
    return target


@pytest.mark.parametrize("fill", [b" ", b"["])
def test_a_manifest_that_is_too_large(path: Path, fill: bytes) -> None:
    text = (path / "pool.json").read_bytes()
    padded = text + b" " * (MAX_JSON_BYTES - len(text))
    (path / "pool.json").write_bytes(padded)
    assert _ending(path).kind == "well"
    verify(path)
    (path / "pool.json").write_bytes(padded + fill)
    _refused(path, "pool.json", "too large")
    with pytest.raises(Refused):
        verify(path)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_a_manifest_of_brackets(path: Path, opening: bytes) -> None:
    (path / "pool.json").write_bytes(opening * (MAX_JSON_BYTES // len(opening)))
    _refused(path, "pool.json", "nested too deeply")


def test_a_manifest_of_a_gigabyte_or_of_many_names(path: Path) -> None:
    names = b",".join(b'"%x":0' % number for number in range(300_000))
    (path / "pool.json").write_bytes(b'{%b,"0":0}' % names)
    _refused(path, "pool.json", "occurs twice")
    os.truncate(path / "pool.json", 1 << 30)
    _refused(path, "pool.json", "too large")


def alike(table: pa.Table, count: int, **columns: Any) -> pa.Table:
    """Return a table of many rows like the first of another, but for some columns."""
    schema = table.schema
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.repeat(table[field.name][0], count)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def test_an_index_of_millions_of_rows(path: Path) -> None:
    pool = Crafted(path)
    index = pool.table("batches")
    rows = 1 << 21
    pool.put("batches", alike(index, rows), use_dictionary=True)
    assert len(pool.files[pool.path("batches")]) < 100_000
    pool.save(path)
    _refused(path, "pool.json", "counts.batches")
    pool.manifest["counts"]["batches"] = rows
    pool.save(path)
    _refused(path, "pool.json", "counts.batches", "one for each byte of labels")
    # The manifest says little, the file has much.
    pool.entry("batches")["rows"] = pool.manifest["counts"]["batches"] = index.num_rows
    pool.save(path)
    _refused(path, "batches-", "row count differs from the manifest")


def test_an_image_table_of_millions_of_rows(path: Path) -> None:
    pool = Crafted(path)
    rows = 1 << 21
    pool.put("images", alike(pool.table("images"), rows))
    pool.manifest["counts"]["images"] = rows
    pool.save(path)
    _refused(path, "pool.json", "counts.images", "4 for each byte")


def test_views_that_are_all_alike(path: Path) -> None:
    """As many views as a row group may have, in a hundred kilobytes; every count agrees."""
    pool = Crafted(path)
    batches = (1 << 20) // MAX_BATCH_SIZE
    compact = Crafted(GOLDEN / "f16")
    rows = batches * MAX_BATCH_SIZE
    frame = zstandard.ZstdCompressor().compress(bytes(2 * MAX_BATCH_SIZE))
    pool.manifest |= {"classes": 2, "batch_size": MAX_BATCH_SIZE, "codec": compact.manifest["codec"]}
    pool.put("views", alike(pool.table("views"), rows))
    blobs, numbers = [frame] * batches, range(batches)
    labels = compact.table("labels")
    pool.put(
        "labels", alike(labels, batches, epoch=[0] * batches, batch=numbers, plane_0=blobs, plane_1=blobs)
    )
    counted = {"batch": numbers, "position": numbers, "first_row": range(0, rows, MAX_BATCH_SIZE)}
    pool.put("batches", alike(pool.table("batches"), batches, rows=[MAX_BATCH_SIZE] * batches, **counted))
    place_groups(pool)
    pool.manifest["counts"] |= {"rows": rows, "batches": batches, "epochs": 1, "incomplete_batches": 0}
    pool.manifest["coverage"] |= {"maximum": rows, "classes": 2}
    classes = [number % 2 for number in range(pool.manifest["counts"]["images"])]
    pool.change("images", "class", lambda values: values.__setitem__(slice(None), classes))
    pool.save(path)
    assert sum(map(len, pool.files.values())) < 200_000
    _refused(path, "views/")


@pytest.mark.parametrize("excess", [0, 1])
def test_labels_as_large_as_they_may_be(path: Path, excess: int) -> None:
    pool = Crafted(GOLDEN / "f16")
    rows = pool.manifest["batch_size"]
    pool.manifest["classes"] = MAX_BATCH_VALUES // rows
    frame = zstandard.ZstdCompressor().compress(bytes(MAX_BATCH_VALUES + excess))

    for column in ("plane_0", "plane_1"):
        pool.change("labels", column, lambda values: values.__setitem__(0, frame))
    place_groups(pool)
    shutil.rmtree(path)
    pool.save(path)

    def read() -> None:
        with PoolReader(path) as reader:
            assert reader.labels_at(0).shape == (rows, MAX_BATCH_VALUES // rows)

    ending = watched(read, megabytes=MEGABYTES, seconds=SECONDS)
    assert ending.kind == ("refused" if excess else "well"), ending


ENDED = (1694, 1967, 2583, 2604, 2919, 2940, 3255, 3591, 3654, 3927)
"""Bits of the footer of an index that ended the process, or in a traceback, while Arrow read it."""


@pytest.mark.parametrize("bit", ENDED)
def test_footers_made_for_arrow(tmp_path: Path, bit: int) -> None:
    """A bit of a footer is flipped and the pool signed again; `make hostile` tries other files."""
    pool = Crafted(GOLDEN / "f16")
    data = bytearray(pool.files[pool.path("batches")])
    data[len(data) - pool.entry("batches")["footer_bytes"] + bit // 8] ^= 1 << bit % 8
    pool.files[pool.path("batches")] = bytes(data)
    pool.sign_bytes("batches")
    pool.name_index()
    pool.save(tmp_path / "pool")
    ending = _ending(tmp_path / "pool")
    assert not ending.finding, ending


@pytest.mark.parametrize("role", ["labels", "views"])
def test_a_file_is_cut_off_after_opening(tmp_path: Path, role: str) -> None:
    path = tmp_path / "pool"
    shutil.copytree(GOLDEN / "shards", path)

    def read() -> None:
        with PoolReader(path, view_cache_bytes=0) as pool:
            pool.read(pool.index.key(0))
            for entry in pool.manifest.files_of("labels" if role == "labels" else "views"):
                os.truncate(path / entry.path, 10)
            for number in range(len(pool)):
                pool.read(pool.index.key(number))

    ending = watched(read, megabytes=MEGABYTES, seconds=SECONDS)
    assert ending.kind == "refused", ending
    assert f"{role}/" in ending.said


def test_a_manifest_that_is_a_link_out_is_not_read(path: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"password": "hunter2"}')
    (path / "pool.json").unlink()
    (path / "pool.json").symlink_to(secret)
    os.utime(secret, (0, 0))
    with pytest.raises(LabelPoolError, match="symlink leads outside the pool") as caught:
        PoolReader(path)
    assert "hunter2" not in str(caught.value)
    assert secret.stat().st_atime == 0


@pytest.mark.parametrize("role", ["labels", "images", "manifest"])
def test_a_pipe_for_a_file(path: Path, role: str) -> None:
    file = path / ("pool.json" if role == "manifest" else Crafted(path).path(role))
    file.unlink()
    os.mkfifo(file)
    _refused(path)


@pytest.mark.parametrize(
    ("change", "file"),
    [
        (lambda path: (path / "notes.txt").write_text("hello"), "notes.txt"),
        (lambda path: (path / "README.md").symlink_to("pool.json"), "README.md"),
        (lambda path: edit_manifest(path, later={"must_understand": False}), "pool.json"),
        (lambda path: edit_manifest(path, augmentation__resize="magic"), "pool.json"),
    ],
)
def test_strict_reports_what_is_not_needed(path: Path, change: Callable[[Path], object], file: str) -> None:
    assert check_pool(path, strict=True).whole
    change(path)
    if file != "pool.json" or "magic" not in (path / "pool.json").read_text():
        assert check_pool(path).whole
    assert any(problem.file.startswith(file) for problem in check_pool(path, strict=True).problems)


def test_verify_reports_bytes_that_belong_to_no_column(path: Path) -> None:
    pool = Crafted(path)
    data, length = pool.files[pool.path("views")], pool.entry("views")["footer_bytes"]
    pool.files[pool.path("views")] = data[:-length] + b"something else" + data[-length:]
    pool.sign()
    pool.save(path)
    (problem,) = check_pool(path).problems
    assert problem.file.startswith("views/")
    assert "belong to no column" in problem.message


def test_verify_refuses_a_table_that_grows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Crafted(path)
    rows = 1 << 14
    paths = [f"{number:04000d}" for number in range(rows)]
    digests = [os.urandom(16) for _ in range(rows)]
    many = alike(pool.table("images"), rows, path=paths, digest=digests)
    pool.put("images", many, data_page_size=1 << 30)
    pool.manifest["counts"]["images"] = rows
    pool.manifest["coverage"] |= {"minimum": 0, "median": 0.0}
    pool.save(path)
    monkeypatch.setattr("lpld_labels.inspect.check.TABLE_SPARE_BYTES", 0)
    problems = check_pool(path).problems
    assert any("far larger than its file" in problem.message for problem in problems), problems


@pytest.mark.parametrize(("limit", "words"), [("MEMORY_BYTES", "memory"), ("SECONDS", "processor time")])
def test_strict_limits_its_child(path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, words: str) -> None:
    # No second: importing has taken more.
    monkeypatch.setattr(f"lpld_labels.inspect.check.{limit}", 1000 if limit == "MEMORY_BYTES" else 0)
    (problem,) = check_pool(path, strict=True).problems
    assert words in problem.message
    monkeypatch.undo()
    (path / "pool.json").write_text("{}")
    with pytest.raises(ManifestError):
        check_pool(path, strict=True)
