"""Files of torch.save, read without torch: the same values, or refused without running anything."""

import copy
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpld_labels.errors import LabelFileError, UnsafePickleError
from lpld_labels.interop.batch_file import read_batch_file
from lpld_labels.interop.layouts import LPQLD
from lpld_labels.interop.torch_file import MAX_FILE_BYTES, MAX_INSTRUCTIONS, MAX_VALUES, read_torch_file
from tests.lpld_labels.interop.conftest import REFERENCES, References
from tests.trust.children import watched

MEGABYTES, SECONDS = 64, 10.0
PROTO = b"\x80\x02"


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, torch.Tensor):
        theirs = theirs.numpy()
        assert isinstance(ours, np.ndarray)
    assert type(ours) is type(theirs)
    if isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()
    elif isinstance(theirs, list | tuple):
        for our, their in zip(ours, theirs, strict=True):
            assert_same(our, their)
    else:
        assert ours == theirs


def test_all_reference_files(reference: References) -> None:
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
    "numpy arrays": [np.random.default_rng(0).random((5, 4)).astype(np.float32), np.eye(3) > 0],
    "fortran array": [np.asfortranarray(np.arange(12.0).reshape(3, 4))],
}


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_what_torch_saves(tmp_path: Path, name: str, protocol: int) -> None:
    torch.save(CONTENTS[name], tmp_path / "x.tar", pickle_protocol=protocol)
    assert_same(read_torch_file(tmp_path / "x.tar"), torch.load(tmp_path / "x.tar", weights_only=False))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "batch_0.tar"
    torch.save([torch.randn(8, 4), torch.arange(8), 0.5, [np.int64(3)], torch.randn(8, 30).half()], path)
    return path.read_bytes()


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_damage(whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
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


def rewritten(
    whole: bytes, *extra: tuple[str, bytes], without: str = "", compress: int = zipfile.ZIP_STORED
) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as source, zipfile.ZipFile(sink, "w") as target:
        for name in source.namelist():
            if name != without:
                target.writestr(name, source.read(name), compress)
        for name, content in extra:
            target.writestr(name, content)
    return sink.getvalue()


def overlapping(whole: bytes) -> bytes:
    """Return a file whose members are all the same bytes: small on disk, large when read."""
    sink = io.BytesIO(whole)
    with zipfile.ZipFile(sink, "a") as archive:
        for number in range(20):
            twin = copy.copy(max(archive.infolist(), key=lambda member: member.file_size))
            twin.filename = f"x/data/{number}"
            archive.filelist.append(twin)
        archive.writestr("last", b"")  # so that the directory is written again
    return sink.getvalue()


def old_format(_: bytes) -> bytes:
    sink = io.BytesIO()
    torch.save([torch.zeros(2)], sink, _use_new_zipfile_serialization=False)
    return sink.getvalue()


STORAGE, ORDER = "batch_0/data/0", "batch_0/byteorder"
WRONG_FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "compressed": (lambda w: rewritten(w, compress=zipfile.ZIP_DEFLATED), "compressed or encrypted"),
    "no storage": (lambda w: rewritten(w, without=STORAGE), "missing"),
    "no pickle": (lambda w: rewritten(w, without="batch_0/data.pkl"), "not a torch.save file"),
    "two pickles": (lambda w: rewritten(w, ("other/data.pkl", b"N.")), "not a torch.save file"),
    "byte order": (lambda w: rewritten(w, (ORDER, b"middle"), without=ORDER), "byte order"),
    "short storage": (lambda w: rewritten(w, (STORAGE, b"short"), without=STORAGE), "wrong size"),
    "one name twice": (lambda w: rewritten(w, (STORAGE, b"another")), "two members"),
    "overlap": (overlapping, "overlap"),
    "old format": (old_format, "an older PyTorch wrote it, load it and save it with a newer one"),
    "plain pickle": (lambda _: pickle.dumps([1, 2]), r"torch\.save"),
    "truncated": (lambda w: w[:200], r"batch_0\.tar.*restore this file"),
    "lacks its end": (lambda w: w[:-1], r"batch_0\.tar.*restore this file"),
    "lacks its directory": (lambda w: w[:-30], r"batch_0\.tar.*restore this file"),
    "empty": (lambda w: b"", r"batch_0\.tar.*restore this file"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", WRONG_FILES)
def test_files_that_torch_would_not_write(tmp_path: Path, whole: bytes, name: str) -> None:
    change, message = WRONG_FILES[name]
    path = tmp_path / "batch_0.tar"
    path.write_bytes(change(whole))
    with pytest.raises(LabelFileError, match=message):
        read_torch_file(path)


def test_big_endian_files(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    torch.save([torch.arange(5, dtype=torch.float32)], path)
    content = rewritten(path.read_bytes(), ("x/byteorder", b"big"), without="x/byteorder")
    path.write_bytes(
        rewritten(content, ("x/data/0", np.arange(5, dtype=">f4").tobytes()), without="x/data/0")
    )
    assert_same(read_torch_file(path), [torch.arange(5, dtype=torch.float32)])


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with (tmp_path / "large.tar").open("wb") as stream:
        os.truncate(stream.fileno(), MAX_FILE_BYTES + 1)
    os.mkfifo(tmp_path / "pipe.tar")
    (tmp_path / "directory.tar").mkdir()
    with zipfile.ZipFile(tmp_path / "bomb.tar", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", b"N" * 50_000_000)
    for name, said in (
        ("absent", "missing"), ("directory", "cannot read"), ("large", "too large"), ("pipe", "it is a pipe"),
        ("bomb", "compressed"),
    ):  # fmt: skip
        read = partial(read_torch_file, tmp_path / f"{name}.tar")
        found = watched(read, megabytes=MEGABYTES, seconds=SECONDS)
        assert (found.kind, said in found.said) == ("refused", True), found


def save(path: Path, program: bytes, storages: dict[str, bytes] | None = None) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", program)
        archive.writestr("x/byteorder", "little")
        for key, content in (storages or {}).items():
            archive.writestr(f"x/data/{key}", content)
        archive.writestr("x/version", "3\n")
    return path


class Attack:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


ATTACKS: dict[str, Callable[[Path], Any]] = {
    "os.system": lambda flag: Attack(os.system, f"touch {flag}"),
    "eval": lambda flag: Attack(eval, f"open({str(flag)!r}, 'w')"),
    "open": lambda flag: Attack(open, str(flag), "w"),
    "getattr": lambda flag: Attack(getattr, flag, "touch"),
    "import": lambda flag: Attack(__import__, "antigravity"),
    "in a list": lambda flag: [1, [2, Attack(os.system, f"touch {flag}")]],
    "in a tuple": lambda flag: [(1, (Attack(os.mkdir, str(flag)),))],
}


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_runs(tmp_path: Path, name: str) -> None:
    flag = tmp_path / "it ran"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path = save(tmp_path / "batch_0.tar", pickle.dumps(ATTACKS[name](flag), protocol))
        with pytest.raises(UnsafePickleError, match=r"batch_0\.tar: pickle contains"):
            read_torch_file(path)
        assert not flag.exists()


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


TENSOR = name("torch._utils", "_rebuild_tensor_v2")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (pickle.dumps(Attack(os.system, "true"), 2)[2:], r"x\.tar: pickle contains 'posix\.system'"),
        (name("torch", "load") + b".", "'torch.load'"),
        (name("torch", "_utils.os.system") + b".", r"'torch\._utils\.os\.system'"),
        (name("torch._utils", "os.system") + b".", r"'torch\._utils\.os\.system'"),
        (name("numpy", "load") + b".", "'numpy.load'"),
        (name("numpy.core.multiarray", "fromfile") + b".", "fromfile"),
        (name("collections", "namedtuple") + b".", "namedtuple"),
        (b"]}b.", "the instruction EMPTY_DICT"),
        (name("torch", "FloatStorage") + b".", "the value StorageType"),
        (name("_codecs", "encode") + b".", "the value method"),
        (name("numpy", "dtype") + b"X\x02\x00\x00\x00i8\x85R.", "the value Dtype"),
        (b"(ios\nsystem\n.", "the instruction INST"),
        (b"(" + name("os", "system") + b"o.", "the instruction OBJ"),
        (TENSOR + b")\x81.", "the instruction NEWOBJ"),
        (b"\x82\x01.", "the instruction EXT1"),
        (b"Pmodule\n.", "the instruction PERSID"),
        (b"\x8c\x02os\x8c\x06system\x93.", r"'os\.system'"),
    ],
)
def test_instructions_and_names_outside_the_table(tmp_path: Path, body: bytes, message: str) -> None:
    with pytest.raises(UnsafePickleError, match=message):
        read_torch_file(save(tmp_path / "x.tar", PROTO + body))


def storage(key: bytes, count: int) -> bytes:
    kind = b"X\x07\x00\x00\x00storage" + name("torch", "FloatStorage")
    place = b"X" + struct.pack("<I", len(key)) + key + b"X\x03\x00\x00\x00cpuJ" + struct.pack("<i", count)
    return b"(" + kind + place + b"tQ"


def tensor(offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *, count: int = 4) -> bytes:
    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"

    return (
        PROTO + TENSOR + b"(" + storage(b"0", count) + b"J" + struct.pack("<i", offset)
        + numbers(shape) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)RtR."
    )  # fmt: skip


def nested(depth: int) -> bytes:
    """Return a list of 100 times the same list of 100 times the same list ..."""
    if depth == 0:
        return b"](" + b"K\x01" * 100 + b"e"
    place = bytes([depth - 1])
    return b"](" + nested(depth - 1) + b"q" + place + (b"h" + place) * 99 + b"e"


def multiplied_text() -> bytes:
    text = b"X" + struct.pack("<I", 10_000) + b"a" * 10_000 + b"q\x00"
    first = name("_codecs", "encode") + b"q\x01" + text + b"X\x06\x00\x00\x00latin1q\x02\x86R"
    return PROTO + b"](" + first + b"h\x01h\x00h\x02\x86R" * 1000 + b"e."


DAMAGED = [
    b"", b"]", b"e.", b"(.", b"N(K\x01e.", b"h\x07.", b"K", b"cos", b"\x93.", b"NR.", b"\xfe.", b"NQ.",
    b"X\xff\xff\xff\xffabc.", b"X\x02\x00\x00\x00\xff\xff.", b"K\x01)R.", b"](K\x01tb.",
    name("torch", "FloatStorage") + b")R.", name("numpy", "ndarray") + b")R.",
    name("_codecs", "encode") + b"(K\x01tb.", TENSOR + b"(K\x01tb.", name("numpy", "dtype") + b"(K\x01tb.",
    name("collections", "OrderedDict") + b"NR.", name("collections", "OrderedDict") + b"N\x85R.",
    TENSOR + b"]K\x00))\x89NtR.", name("numpy", "dtype") + b"X\x01\x00\x00\x00O\x85R.",
    name("numpy._core.multiarray", "_reconstruct") + b")R.",
    name("numpy._core.multiarray", "scalar") + b"NN\x86R.",
    name("_codecs", "encode") + b"X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
]  # fmt: skip
LIES = {
    "steps over the end": tensor(0, (4,), (2,)),
    "starts too late": tensor(2, (3,), (1,)),
    "one value shown 2^60 times": tensor(0, (2**30, 2**30), (0, 0)),
    "one value shown 2^31 times": tensor(0, (2**31 - 1,), (0,)),
    "one value shown too often": tensor(0, (5,), (0,)),
    "negative offset": tensor(-1, (2,), (1,)),
    "negative side": tensor(0, (-4,), (1,)),
    "negative step": tensor(3, (4,), (-1,)),
    "more steps than sides": tensor(0, (4,), (1, 1)),
    "nine dimensions": tensor(0, (1,) * 9, (1,) * 9),
    **{f"storage of {count}": tensor(0, (4,), (1,), count=count) for count in (5, 3, 2**31 - 1, -1)},
    **{
        f"storage {key!r}": PROTO + storage(key, 1) + b"."
        for key in (b"1", b"../data.pkl", b"/etc/passwd", b"../../version", b"")
    },
}
TOO_MUCH = {
    "lists expand to more than 100000 values": PROTO + nested(6) + b".",
    "nested more than 8 deep": PROTO + nested(8) + b".",
    "lists are nested more than 8 deep": PROTO + b"]q\x00h\x00a.",
    "more bytes than it contains": multiplied_text(),
    # The standard unpickler would ask for 64 GB.
    "more than 200000 memo slots": PROTO + b"Nr\xff\xff\xff\xff.",
    # NumPy sets a state with its own type, which no pickle can name here.
    "damaged pickle": tensor(0, (4,), (1,))[:-1] + b"(K\x01(K\x04t" + name("numpy", "dtype")
    + b"X\x02\x00\x00\x00f4\x85R" + b"\x89C\x10" + bytes(16) + b"tb.",
}  # fmt: skip


@pytest.mark.parametrize(
    ("program", "message"),
    [
        *(pytest.param(PROTO + body, "damaged pickle", id=f"damaged {n}") for n, body in enumerate(DAMAGED)),
        *(pytest.param(program, r"x\.tar", id=lie) for lie, program in LIES.items()),
        *(pytest.param(program, message, id=message) for message, program in TOO_MUCH.items()),
    ],
)
def test_pickles_that_do_not_fit_together_or_lie(tmp_path: Path, program: bytes, message: str) -> None:
    path = save(tmp_path / "x.tar", program, {"0": struct.pack("<4f", 1, 2, 3, 4)})
    with pytest.raises(LabelFileError, match=message) as caught:
        read_torch_file(path)
    assert not isinstance(caught.value, UnsafePickleError)


def test_as_much_as_is_allowed_is_read(tmp_path: Path) -> None:
    path = save(tmp_path / "x.tar", tensor(1, (3,), (1,)), {"0": struct.pack("<4f", 1, 2, 3, 4)})
    values: Any = read_torch_file(path)
    assert values.tolist() == [2, 3, 4]
    lists: Any = read_torch_file(save(path, PROTO + nested(1) + b"."))
    assert lists[0] is lists[99]
    numbers = [1] * (MAX_VALUES - 1)
    assert read_torch_file(save(path, pickle.dumps(numbers, 2))) == numbers
    with pytest.raises(LabelFileError, match=f"more than {MAX_VALUES} values"):
        read_torch_file(save(path, pickle.dumps([*numbers, 1], 2)))
    program = PROTO + b"N" + b"\x94" * (MAX_INSTRUCTIONS - 3) + b"."
    assert read_torch_file(save(path, program)) is None
    with pytest.raises(LabelFileError, match=f"more than {MAX_INSTRUCTIONS} instructions"):
        read_torch_file(save(path, program[:-1] + b"\x94."))


def shared(depth: int, width: int = 10) -> list[object]:
    """Return lists of the same lists: some hundred bytes, and width ** depth numbers."""
    item: list[object] = [1] * width
    for _ in range(depth - 1):
        item = [item] * width
    return item


BOMBS = {
    "shared lists": pickle.dumps(shared(7), 2),
    "shared lists as a box": pickle.dumps([None, None, None, None, [shared(7)] * 4, None], 2),
    "shared lists as a strength": pickle.dumps([None, None, None, shared(7), None, None], 2),
    "shared lists as a type": PROTO + name("numpy", "dtype") + pickle.dumps(shared(7), 2)[2:-1] + b"\x85R.",
    "list instructions": PROTO + b"(" + b"]" * 5_000_000 + b"l.",
    "tuple instructions": PROTO + b")" * 5_000_000 + b".",
    "marks": PROTO + b"(" * 5_000_000 + b".",
    "notes": PROTO + b"N" + b"\x94" * 5_000_000 + b".",
    "floats": PROTO + b"(" + (b"G" + struct.pack(">d", 1.5)) * 600_000 + b"l.",
    "nested tuples": PROTO + b"N" + b"\x85" * 5_000_000 + b".",
    "long numbers": PROTO + b"(" + (b"\x8a\xff" + b"\x7f" * 255) * 20_000 + b"l.",
    "a name of megabytes": PROTO + b"c" + b"a" * 2_000_000 + b"\nb\n.",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_within_its_bounds(tmp_path: Path, bomb: str) -> None:
    path = save(tmp_path / "batch_0.tar", BOMBS[bomb])
    megabytes = MEGABYTES + 4 * path.stat().st_size // 1_000_000
    found = watched(lambda: read_batch_file(path, LPQLD.items) and None, megabytes=megabytes, seconds=SECONDS)
    assert found.kind == "refused", found
    assert len(found.said) < 1000
