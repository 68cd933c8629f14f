"""Crafted label files: pickles that want more than data, bombs, zips that lie, and valid files spoilt."""

import io
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpld_labels.errors import LabelPoolError
from lpld_labels.interop.batch_file import read_batch_file
from lpld_labels.interop.importing import read_image_file
from lpld_labels.interop.layouts import LPQLD
from tests.lpld_labels.interop.label_folders import batch_list

FLAG = "it ran"
_NAMES = (
    "posix system; os system; builtins eval; builtins exec; builtins open; builtins getattr; "
    "subprocess Popen; torch load; torch._utils _rebuild_tensor_v2; torch FloatStorage; "
    "numpy dtype; numpy ndarray; numpy.core.multiarray _reconstruct; numpy._core.multiarray scalar; "
    "_codecs encode; collections OrderedDict; lpld_labels.interop.torch_file read_torch_file"
)


class _Call:
    """Pickles to a call of anything."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


def crafted_file(folder: Path, number: int, *, seed: int) -> Path:
    """Write the label file of this number."""
    draw = random.Random(f"{seed} label file {number}")
    kinds = (partial(_attack, flag=folder / FLAG), _program, _bomb, _spoilt, _spoilt_zip)
    path = folder / "batch_0.tar"
    path.write_bytes(kinds[number % len(kinds)](draw))
    return path


def use_file(path: Path) -> str | None:
    """Read a file as each kind of label file; say so if it ran code."""
    errors = []
    for read in (partial(read_batch_file, items=LPQLD.items), read_image_file):
        try:
            read(path)
        except LabelPoolError as error:
            errors.append(error)
    if (path.parent / FLAG).exists():
        return "code ran"
    if len(errors) == 2:
        raise errors[0]
    return None


def _zip(program: bytes, storages: dict[str, bytes] | None = None) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("x/data.pkl", program)
        archive.writestr("x/byteorder", "little")
        for key, content in (storages or {}).items():
            archive.writestr(f"x/data/{key}", content)
    return sink.getvalue()


def _attack(draw: random.Random, flag: Path) -> bytes:
    """Ask for a call, somewhere in a list like a batch's."""
    calls: list[Any] = [
        _Call(os.system, f"touch '{flag}'"),
        _Call(eval, f"open({str(flag)!r}, 'w')"),
        _Call(exec, f"open({str(flag)!r}, 'w')"),
        _Call(open, str(flag), "w"),
        _Call(os.mkdir, str(flag)),
        _Call(Path.touch, flag),
        _Call(getattr, flag, "touch"),
    ]
    saved: list[Any] = [None] * draw.choice([3, 6, 7])
    saved[draw.randrange(len(saved))] = draw.choice([draw.choice(calls), [draw.choice(calls)]])
    return _zip(pickle.dumps(saved, draw.randrange(pickle.HIGHEST_PROTOCOL + 1)))


def _program(draw: random.Random) -> bytes:
    """Write instructions in any order, arguments included."""
    parts: list[Callable[[], bytes]] = [
        lambda: bytes([draw.choice(b"(])N\x88\x89tlea\x85\x86")]),
        lambda: bytes([draw.choice(b"\x87RbQ\x93\x9402}suo")]),
        lambda: b"c" + draw.choice(_NAMES.split("; ")).replace(" ", "\n").encode() + b"\n",
        lambda: b"K" + draw.randbytes(1),
        lambda: b"J" + draw.randbytes(4),
        lambda: b"\x8a" + bytes([draw.randrange(256)]) + draw.randbytes(draw.randrange(256)),
        lambda: b"G" + draw.randbytes(8),
        lambda: b"X" + struct.pack("<I", draw.choice([1, 3, 2**31])) + draw.choice([b"i8", b"cpu", b"\xff"]),
        lambda: b"q" + bytes([draw.randrange(4)]),
        lambda: b"h" + bytes([draw.randrange(4)]),
        lambda: b"j" + draw.randbytes(4),
        lambda: b"B" + struct.pack("<I", draw.choice([4, 2**32 - 1])) + b"1234",
        lambda: draw.randbytes(1),
    ]
    body = b"".join(draw.choice(parts)() for _ in range(draw.choice([5, 30, 300])))
    return _zip(b"\x80\x02" + body + b".", {"0": draw.randbytes(16)})


def _bomb(draw: random.Random) -> bytes:
    """Ask for far more memory or time than the file is long."""
    item: Any = [1] * 10
    for _ in range(draw.randrange(2, 12)):
        item = [item] * draw.choice([2, 10, 30])
    saved: list[Any] = [None] * 6
    saved[draw.randrange(6)] = draw.choice([item, [item] * 4, (item,)])
    opcode = draw.choice([b"]", b")", b"(", b"N", b"\x85", b"N\x94", b"K\x01", b"h\x00"])
    tensor = torch.zeros(4).expand(draw.choice([10, 10**6]), 4) if draw.random() < 0.5 else None
    texts = b"X" + struct.pack("<I", 3_000_000) + "\u00e9".encode() * 1_500_000
    programs = [
        pickle.dumps(saved, 2),
        b"\x80\x02]q\x00" + opcode * draw.choice([1000, 3_000_000]) + b"l.",
        b"\x80\x02" + texts + b"\x85" * 9 + b".",
        b"\x80\x02(" + b"\x8a\xff" + b"\x7f" * 255 + b"h\x00" * 100 + b"t.",
    ]
    return _saved([tensor] * 6) if draw.random() < 0.2 else _zip(draw.choice(programs))


def _saved(item: object) -> bytes:
    sink = io.BytesIO()
    torch.save(item, sink)
    return sink.getvalue()


def _strange(draw: random.Random) -> Any:
    return draw.choice(
        [None, -1, 10**300, float("nan"), [[1], [2, 3]], "x" * 1000, b"x", torch.zeros(0), torch.zeros(3, 0),
         torch.zeros(4, 4, dtype=torch.complex64), torch.full((4, 4), float("inf")), [torch.zeros(1)] * 4,
         torch.zeros(2, 2).t(), torch.arange(9), np.int64(7), np.float16(2), True, (), [[]] * 9]
    )  # fmt: skip


def _spoilt(draw: random.Random) -> bytes:
    """Save a valid batch with strange items."""
    saved = batch_list(np.arange(4), np.random.default_rng(draw.randrange(1 << 30)), classes=5)
    for _ in range(draw.choice([1, 1, 2])):
        saved[draw.randrange(len(saved))] = _strange(draw)
    if draw.random() < 0.2:
        saved.append(_strange(draw))
    return _saved(saved)


def _spoilt_zip(draw: random.Random) -> bytes:
    """Change bytes of a valid file; those of its pickle and directory most."""
    rng = np.random.default_rng(draw.randrange(1 << 30))
    mix = draw.choice(["none", "cutmix", "mixup"])
    data = bytearray(_saved(batch_list(np.arange(4), rng, classes=5, mix=mix)))
    hot = [data.find(b"data.pkl") + draw.randrange(400), len(data) - draw.randrange(1, 900)]
    for _ in range(draw.choice([1, 3, 20])):
        place = draw.choice([*hot, draw.randrange(len(data))]) % len(data)
        data[place] = draw.choice([0, 0xFF, data[place] ^ (1 << draw.randrange(8)), draw.randrange(256)])
    if draw.random() < 0.2:
        del data[draw.randrange(len(data)) :]
    return bytes(data)
