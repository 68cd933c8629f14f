"""Pickles that want more than data: every way in must be closed, and nothing may run."""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lpld_labels.errors import LabelFileError, UnsafePickleError
from lpld_labels.interop.torch_file import read_torch_file


def save(path: Path, program: bytes, storages: dict[str, bytes] | None = None) -> Path:
    """Write a file of torch.save's form around any pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", program)
        archive.writestr("x/byteorder", "little")
        for key, content in (storages or {}).items():
            archive.writestr(f"x/data/{key}", content)
        archive.writestr("x/version", "3\n")
    return path


class Attack:
    """Pickles to a call of anything."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def touch(path: str) -> None:
    Path(path).touch()


ATTACKS: dict[str, Callable[[Path], Any]] = {
    "os.system": lambda flag: Attack(os.system, f"touch {flag}"),
    "eval": lambda flag: Attack(eval, f"open({str(flag)!r}, 'w')"),
    "exec": lambda flag: Attack(exec, f"open({str(flag)!r}, 'w')"),
    "open": lambda flag: Attack(open, str(flag), "w"),
    "getattr": lambda flag: Attack(getattr, flag, "touch"),
    "import": lambda flag: Attack(__import__, "antigravity"),
    "our own": lambda flag: Attack(touch, str(flag)),
    "in a list": lambda flag: [1, [2, Attack(os.system, f"touch {flag}")]],
    "in a tuple": lambda flag: [(1, (Attack(os.mkdir, str(flag)),))],
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_runs(tmp_path: Path, name: str, protocol: int) -> None:
    flag = tmp_path / "it ran"
    path = save(tmp_path / "batch_0.tar", pickle.dumps(ATTACKS[name](flag), protocol))
    with pytest.raises(UnsafePickleError, match=r"batch_0\.tar: pickle asks for"):
        read_torch_file(path)
    assert not flag.exists()


def test_the_name_is_said(tmp_path: Path) -> None:
    path = save(tmp_path / "batch_7.tar", pickle.dumps(Attack(os.system, "true"), 2))
    with pytest.raises(UnsafePickleError, match=r"batch_7\.tar: pickle asks for 'posix\.system'"):
        read_torch_file(path)


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


TENSOR = name("torch._utils", "_rebuild_tensor_v2")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (name("torch", "load") + b".", "'torch.load'"),
        (name("torch", "_utils.os.system") + b".", r"'torch\._utils\.os\.system'"),
        (name("torch._utils", "os.system") + b".", r"'torch\._utils\.os\.system'"),
        (name("numpy", "load") + b".", "'numpy.load'"),
        (name("numpy.core.multiarray", "fromfile") + b".", "fromfile"),
        (name("collections", "namedtuple") + b".", "namedtuple"),
        (name("builtins", "getattr") + b".", "getattr"),
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
    path = save(tmp_path / "x.tar", b"\x80\x02" + body)
    with pytest.raises(UnsafePickleError, match=message):
        read_torch_file(path)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"]",
        b"e.",
        b"(.",
        b"N(K\x01e.",
        b"h\x07.",
        b"K",
        b"X\xff\xff\xff\xffabc.",
        b"X\x02\x00\x00\x00\xff\xff.",
        b"cos",
        name("torch", "FloatStorage") + b")R.",
        name("numpy", "ndarray") + b")R.",
        b"K\x01)R.",
        b"](K\x01tb.",
        name("_codecs", "encode") + b"(K\x01tb.",
        TENSOR + b"(K\x01tb.",
        name("numpy", "dtype") + b"(K\x01tb.",
        b"\x93.",
        b"NR.",
        name("collections", "OrderedDict") + b"NR.",
        name("collections", "OrderedDict") + b"N\x85R.",
        TENSOR + b"]K\x00))\x89Nt" + b"R.",
        name("numpy", "dtype") + b"X\x01\x00\x00\x00O\x85R.",
        name("numpy._core.multiarray", "_reconstruct") + b")R.",
        name("numpy._core.multiarray", "scalar") + b"NN\x86R.",
        name("_codecs", "encode") + b"X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
        b"\xfe.",
        b"NQ.",
    ],
)
def test_pickles_that_do_not_fit_together(tmp_path: Path, body: bytes) -> None:
    path = save(tmp_path / "x.tar", b"\x80\x02" + body)
    with pytest.raises(LabelFileError, match="damaged pickle") as caught:
        read_torch_file(path)
    assert not isinstance(caught.value, UnsafePickleError)


def storage(key: bytes, count: int, kind: bytes = b"FloatStorage") -> bytes:
    text = b"X\x07\x00\x00\x00storage" + b"ctorch\n" + kind + b"\n"
    return (
        b"("
        + text
        + b"X"
        + struct.pack("<I", len(key))
        + key
        + b"X\x03\x00\x00\x00cpuJ"
        + struct.pack("<i", count)
        + b"tQ"
    )


def tensor(offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *, count: int = 4) -> bytes:
    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"

    return (
        b"\x80\x02" + TENSOR + b"(" + storage(b"0", count) + b"J" + struct.pack("<i", offset)
        + numbers(shape) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)RtR."
    )  # fmt: skip


SIXTEEN = {"0": struct.pack("<4f", 1, 2, 3, 4)}


def test_a_tensor_as_such(tmp_path: Path) -> None:
    values = read_torch_file(save(tmp_path / "x.tar", tensor(1, (3,), (1,)), SIXTEEN))
    assert getattr(values, "tolist")() == [2, 3, 4]  # noqa: B009  (the reader's result is an object)


@pytest.mark.parametrize(
    "program",
    [
        tensor(0, (4,), (2,)),  # steps over the end
        tensor(2, (3,), (1,)),  # starts too late
        tensor(0, (2**30, 2**30), (0, 0)),  # one value shown 2^60 times
        tensor(0, (2**31 - 1,), (0,)),
        tensor(0, (5,), (0,)),
        tensor(-1, (2,), (1,)),
        tensor(0, (-4,), (1,)),
        tensor(3, (4,), (-1,)),
        tensor(0, (4,), (1, 1)),
        tensor(0, (1,) * 9, (1,) * 9),
        tensor(0, (4,), (1,), count=5),  # the storage is shorter than it says
        tensor(0, (4,), (1,), count=3),
        tensor(0, (4,), (1,), count=2**31 - 1),
        tensor(0, (4,), (1,), count=-1),
    ],
)
def test_sizes_that_lie(tmp_path: Path, program: bytes) -> None:
    with pytest.raises(LabelFileError):
        read_torch_file(save(tmp_path / "x.tar", program, SIXTEEN))


@pytest.mark.parametrize("key", [b"1", b"../data.pkl", b"/etc/passwd", b"../../version", b""])
def test_storages_outside_the_file(tmp_path: Path, key: bytes) -> None:
    program = b"\x80\x02" + storage(key, 1) + b"."
    with pytest.raises(LabelFileError):
        read_torch_file(save(tmp_path / "x.tar", program, SIXTEEN))


def nested(depth: int) -> bytes:
    """Return a list of 100 times the same list of 100 times the same list ..."""
    if depth == 0:
        return b"](" + b"K\x01" * 100 + b"e"
    place = bytes([depth - 1])
    return b"](" + nested(depth - 1) + b"q" + place + (b"h" + place) * 99 + b"e"


def test_lists_of_the_same_list_are_counted_every_time(tmp_path: Path) -> None:
    values = read_torch_file(save(tmp_path / "x.tar", b"\x80\x02" + nested(1) + b"."))
    assert isinstance(values, list)
    assert values[0] is values[99]
    with pytest.raises(LabelFileError, match="repeats its lists to more than 100000 values"):
        read_torch_file(save(tmp_path / "x.tar", b"\x80\x02" + nested(6) + b"."))


@pytest.mark.parametrize("program", [b"\x80\x02" + nested(8) + b".", b"\x80\x02]q\x00h\x00a."])
def test_lists_too_deep_or_inside_themselves(tmp_path: Path, program: bytes) -> None:
    with pytest.raises(LabelFileError, match="nested more than 8 deep"):
        read_torch_file(save(tmp_path / "x.tar", program))


def test_text_cannot_be_multiplied_into_bytes(tmp_path: Path) -> None:
    text = b"X" + struct.pack("<I", 10_000) + b"a" * 10_000 + b"q\x00"
    encode = name("_codecs", "encode") + b"q\x01"
    first = encode + text + b"X\x06\x00\x00\x00latin1q\x02\x86R"
    again = b"h\x01h\x00h\x02\x86R"
    program = b"\x80\x02](" + first + again * 1000 + b"e."
    with pytest.raises(LabelFileError, match="more bytes than it holds"):
        read_torch_file(save(tmp_path / "x.tar", program))


def test_a_far_memo_place_is_not_reserved(tmp_path: Path) -> None:
    """The standard unpickler would ask for 64 GB."""
    with pytest.raises(LabelFileError, match="more than 200000 memo places"):
        read_torch_file(save(tmp_path / "x.tar", b"\x80\x02Nr\xff\xff\xff\xff."))


def test_the_state_of_a_tensor_cannot_be_set(tmp_path: Path) -> None:
    """NumPy's own way to set it asks for a type of NumPy's, which no pickle can name here."""
    kind = name("numpy", "dtype") + b"X\x02\x00\x00\x00f4\x85R"
    state = b"(K\x01(K\x04t" + kind + b"\x89C\x10" + bytes(16) + b"tb."
    program = tensor(0, (4,), (1,))[:-1] + state
    with pytest.raises(LabelFileError, match="damaged pickle"):
        read_torch_file(save(tmp_path / "x.tar", program, SIXTEEN))
