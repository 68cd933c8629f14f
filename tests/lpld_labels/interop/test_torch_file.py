"""Files of torch.save, read without torch: the same values, or a clear refusal."""

from __future__ import annotations

import copy
import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpld_labels.errors import LabelFileError
from lpld_labels.interop import torch_file
from lpld_labels.interop.torch_file import read_torch_file
from tests.lpld_labels.interop.conftest import REFERENCES, Reference


def assert_same(ours: Any, theirs: Any) -> None:
    """Compare what we read with what torch reads, bit for bit and type by type."""
    if isinstance(theirs, torch.Tensor):
        theirs = theirs.numpy()
        assert isinstance(ours, np.ndarray)
    if isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()
    elif isinstance(theirs, list | tuple):
        assert type(ours) is type(theirs)
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs, strict=True):
            assert_same(our, their)
    else:
        assert type(ours) is type(theirs)
        assert ours == theirs


def test_all_reference_files(reference: Callable[[str], Reference]) -> None:
    files = sorted(file for name in REFERENCES for file in reference(name).labels.rglob("*.tar"))
    assert len(files) == 44
    for file in files:
        assert_same(read_torch_file(file), torch.load(file, weights_only=False))


SHARED = torch.randn(5)
CONTENTS: dict[str, Any] = {
    "dtypes": [torch.arange(6).to(kind) for kind in (torch.uint8, torch.int8, torch.int16, torch.int32)]
    + [torch.randn(3, 4).to(kind) for kind in (torch.float16, torch.float32, torch.float64)]
    + [torch.tensor([True, False])],
    "shapes": [torch.tensor(2.5), torch.zeros(0, 4), torch.randn(2, 3, 4, 5)],
    "views": [torch.arange(24).view(4, 6).t(), torch.arange(24)[3:9:2], torch.arange(24).view(4, 6)[:, 2]],
    "shared storage": [SHARED, SHARED[1:], SHARED],
    "numbers": [None, True, False, 0, -1, 255, 70_000, -(2**31), 2**40, 1.5, float("inf"), "text", b"bytes"],
    "nested": [[1, [2, (3, [])]], ()],
    "numpy scalars": [np.int64(224), np.float64(0.25), np.float32(1.5), np.bool_(True), np.uint8(3)],
    "numpy arrays": [
        np.random.default_rng(0).random((5, 4)).astype(np.float32),
        np.arange(6).reshape(2, 3) > 2,
    ],
    "fortran array": [np.asfortranarray(np.arange(12.0).reshape(3, 4))],
}


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_what_torch_saves(tmp_path: Path, name: str, protocol: int) -> None:
    path = tmp_path / "x.tar"
    torch.save(CONTENTS[name], path, pickle_protocol=protocol)
    assert_same(read_torch_file(path), torch.load(path, weights_only=False))


def test_big_endian_files(tmp_path: Path) -> None:
    torch.save([torch.arange(5, dtype=torch.float32)], tmp_path / "x.tar")
    with zipfile.ZipFile(tmp_path / "x.tar") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["x/byteorder"] = b"big"
    members["x/data/0"] = np.arange(5, dtype=">f4").tobytes()
    with zipfile.ZipFile(tmp_path / "y.tar", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert_same(read_torch_file(tmp_path / "y.tar"), [torch.arange(5, dtype=torch.float32)])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "batch_0.tar"
    torch.save([torch.randn(8, 4), torch.arange(8), 0.5, [np.int64(3)], torch.randn(8, 30).half()], path)
    return path.read_bytes()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_damage_is_a_label_file_error_or_unseen(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    broken = bytearray(whole)
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        broken[place] = data.draw(st.integers(0, 255))
    broken = broken[: data.draw(st.one_of(st.just(len(broken)), st.integers(0, len(broken))))]
    path = tmp_path_factory.getbasetemp() / "damaged.tar"
    path.write_bytes(bytes(broken))
    try:
        found = read_torch_file(path)
    except LabelFileError as error:
        assert str(path) in str(error)  # noqa: PT017  (both outcomes are right)
    else:
        # Bytes that carry nothing (dates, padding) may change; the values may not.
        path.write_bytes(whole)
        assert_same(found, read_torch_file(path))


@settings(max_examples=200, deadline=None)
@given(program=st.binary(max_size=60))
def test_any_bytes_as_a_pickle(tmp_path_factory: pytest.TempPathFactory, program: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.tar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", program)
    try:
        read_torch_file(path)
    except LabelFileError as error:
        assert str(path) in str(error)  # noqa: PT017


def rewritten(whole: bytes, **changes: Any) -> bytes:
    """Return the file with members added, left out or compressed."""
    sink = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as source, zipfile.ZipFile(sink, "w") as target:
        for name in source.namelist():
            if name not in changes.get("without", ()):
                target.writestr(name, source.read(name), changes.get("compress", zipfile.ZIP_STORED))
        for name, content in changes.get("extra", ()):
            target.writestr(name, content)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress": zipfile.ZIP_DEFLATED}, "compressed or encrypted"),
        ({"without": ["batch_0/data/0"]}, "missing"),
        ({"without": ["batch_0/data.pkl"]}, "not a file of torch.save"),
        ({"extra": [("other/data.pkl", b"N.")]}, "not a file of torch.save"),
        ({"without": ["batch_0/byteorder"], "extra": [("batch_0/byteorder", b"middle")]}, "byte order"),
        ({"without": ["batch_0/data/0"], "extra": [("batch_0/data/0", b"short")]}, "wrong size"),
    ],
)
def test_zips_that_torch_would_not_write(
    tmp_path: Path, whole: bytes, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "batch_0.tar"
    path.write_bytes(rewritten(whole, **changes))
    with pytest.raises(LabelFileError, match=message):
        read_torch_file(path)


def test_a_zip_bomb(tmp_path: Path) -> None:
    path = tmp_path / "bomb.tar"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", b"N" * 50_000_000)
    assert path.stat().st_size < 100_000
    with pytest.raises(LabelFileError, match="compressed"):
        read_torch_file(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "batch_0.tar"
    path.write_bytes(rewritten(whole, extra=[("batch_0/data/0", b"another")]))
    with pytest.raises(LabelFileError, match="two members"):
        read_torch_file(path)


def test_members_that_overlap(tmp_path: Path) -> None:
    """Many members that are all the same bytes: small on disk, large when read."""
    path = tmp_path / "overlap.tar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", b"N" * 1000)
        for number in range(20):
            twin = copy.copy(archive.infolist()[0])
            twin.filename = f"x/data/{number}"
            archive.filelist.append(twin)
    with pytest.raises(LabelFileError, match="overlap"):
        read_torch_file(path)


@pytest.mark.parametrize("keep", [0, 1, 30, 200, -1, -30])
def test_truncated(tmp_path: Path, whole: bytes, keep: int) -> None:
    path = tmp_path / "batch_0.tar"
    path.write_bytes(whole[:keep])
    with pytest.raises(LabelFileError, match=r"batch_0\.tar.*restore this file"):
        read_torch_file(path)


def test_old_torch_files_are_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "old.tar"
    torch.save([torch.zeros(2)], path, _use_new_zipfile_serialization=False)
    with pytest.raises(LabelFileError, match="older PyTorch must be loaded and saved again"):
        read_torch_file(path)


def test_plain_pickles_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(LabelFileError, match=r"torch\.save"):
        read_torch_file(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LabelFileError, match="missing"):
        read_torch_file(tmp_path / "batch_0.tar")


def test_a_directory_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(LabelFileError, match="cannot read"):
        read_torch_file(tmp_path)


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.tar"
    with path.open("wb") as stream:
        os.truncate(stream.fileno(), torch_file.MAX_FILE_BYTES + 1)
    with pytest.raises(LabelFileError, match="too large"):
        read_torch_file(path)
