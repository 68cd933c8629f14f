"""What is fuzzed: functions of bytes, each of which may return or raise a LabelPoolError."""

import contextlib
import io
import json
import pickle
import shutil
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa

import lpld_labels
from lpld_labels import LabelPoolError, PoolReader
from lpld_labels.codecs.base import Codec, Payload
from lpld_labels.format.manifest import Manifest
from lpld_labels.interop.batch_file import read_batch_file
from lpld_labels.interop.layouts import LPQLD
from lpld_labels.interop.torch_file import read_torch_file
from lpld_labels.render.decode import decode_image, image_size
from tests.trust.hostile.images import seeds as image_seeds
from tests.trust.signing import sign

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
PACKAGE = Path(lpld_labels.__file__).parent
MOST_BYTES = 4096
"""Of an input. Golden files are as small, and what is wrong with larger ones is wrong with these."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """run: uses bytes. seeds: valid inputs to begin with. parsers: the files whose lines it is to reach."""

    run: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    parsers: tuple[str, ...]


def tried(target: Target, data: bytes) -> None:
    """Use bytes; the project's own errors are as good as no error."""
    with contextlib.suppress(LabelPoolError):
        target.run(data)


def reached(target: Target, inputs: Iterable[bytes]) -> tuple[int, int]:
    """Return the lines that inputs reach, and those there are, in functions of the target's parsers."""
    files = {str(PACKAGE / name) for name in target.parsers}
    hit: dict[CodeType, set[int]] = {}

    def tracer(frame: FrameType, event: str, argument: object) -> Any:
        del event, argument
        if frame.f_code.co_filename not in files:
            return None
        hit.setdefault(frame.f_code, set()).add(frame.f_lineno)
        return tracer

    before = sys.gettrace()
    with warnings.catch_warnings():
        # Decoders may say that a file is odd.
        warnings.simplefilter("ignore")
        for data in inputs:
            sys.settrace(tracer)
            try:
                tried(target, data)
            finally:
                sys.settrace(before)
    # The line of `def` itself is no line of the function.
    there = {code: {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno} for code in hit}
    return sum(len(lines & hit[code]) for code, lines in there.items()), sum(map(len, there.values()))


def _golden(pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(GOLDEN.glob(pattern))]


@lru_cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a directory that is deleted when the process exits."""
    return tempfile.TemporaryDirectory(prefix="lpld-fuzz-")


@lru_cache
def _working_copy(name: str) -> Path:
    """Return a copy of a golden pool that may be damaged."""
    folder = Path(_folder().name)
    shutil.copytree(GOLDEN / name, folder / name)
    return folder / name


def _index(data: bytes) -> None:
    """Open a pool whose batch index is other bytes, properly signed."""
    pool = _working_copy("int8")
    document = json.loads((GOLDEN / "int8" / "pool.json").read_text())
    old = next(entry["path"] for entry in document["files"] if entry["role"] == "batches")
    place = pool / sign(document, old, data)
    place.write_bytes(data)
    (pool / "pool.json").write_text(json.dumps(document))
    try:
        with PoolReader(pool) as reader:
            for number in range(len(reader)):
                reader.index.key(number)
    finally:
        place.unlink()


# Codecs: an input is the columns of a payload one after the other, each with its length in front


def _columns(data: bytes) -> Iterator[bytes]:
    while data:
        length = int.from_bytes(data[:2], "little")
        yield data[2 : 2 + length]
        data = data[2 + length :]


@lru_cache
def _codec(name: str) -> tuple[Codec, Payload, int, int]:
    with PoolReader(GOLDEN / name) as pool:
        return pool.codec, pool.encoded_at(0).payload, int(pool.index.rows[0]), pool.classes


def _decode(pools: tuple[str, ...], data: bytes) -> None:
    """Decode as a codec of one of the pools; of several, the first byte chooses."""
    name = pools[0]
    if len(pools) > 1:
        name, data = pools[data[0] % len(pools)] if data else name, data[1:]
    codec, payload, rows, classes = _codec(name)
    parts = _columns(data)
    changed = {column: _array(array, next(parts, b"")) for column, array in payload.items()}
    codec.decode(changed, rows=rows, classes=classes)
    codec.canonical(changed, rows=rows, classes=classes)


def _array(like: Any, data: bytes) -> Any:
    """Return an Arrow array of the same type and length made of bytes."""
    kind, length = like.type, len(like)
    if pa.types.is_binary(kind):
        # A column may be null where there is nothing to say.
        return pa.array([data or (b"" if like[0].is_valid else None)] * length, kind)
    if pa.types.is_fixed_size_list(kind):
        made: Any = pa.FixedSizeListArray
        return made.from_arrays(_array(like.flatten(), data), type=kind)
    size = length * kind.bit_width // 8
    return pa.Array.from_buffers(kind, length, [None, pa.py_buffer(data[:size].ljust(size, b"\0"))])


def _payloads(pools: tuple[str, ...]) -> list[bytes]:
    found = []
    for number, name in enumerate(pools):
        data = bytes([number]) if len(pools) > 1 else b""
        arrays: Iterable[Any] = _codec(name)[1].values()
        for array in arrays:
            if pa.types.is_binary(array.type):
                part = array[0].as_py() or b""
            else:
                flat = array.flatten() if pa.types.is_fixed_size_list(array.type) else array
                part = flat.buffers()[1].to_pybytes()
            data += len(part).to_bytes(2, "little") + part
        found.append(data)
    return found


@lru_cache
def _file() -> Path:
    return Path(_folder().name) / "batch_0.tar"


def _pickle(data: bytes) -> None:
    """Read any program out of a whole zip."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("x/data.pkl", data)
        archive.writestr("x/data/0", bytes(64))
    _torch_zip(sink.getvalue())


def _pickles() -> list[bytes]:
    values: list[object] = [[1, 2.5, None, True], (1, [2, (3,)]), [["a"] * 3] * 4, b"bytes", 10**50]
    return [pickle.dumps(value, protocol) for value in values for protocol in (2, 4)] + [_saved_program()]


def _saved_program() -> bytes:
    with zipfile.ZipFile(io.BytesIO(_torch_zips()[0])) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))


def _torch_zip(data: bytes) -> None:
    _file().write_bytes(data)
    read_torch_file(_file())
    read_batch_file(_file(), LPQLD.items)


@lru_cache
def _torch_zips() -> list[bytes]:
    import numpy as np
    import torch

    from tests.lpld_labels.interop.label_folders import batch_list

    found = []
    for mix in ("none", "cutmix", "mixup"):
        sink = io.BytesIO()
        torch.save(batch_list(np.arange(2), np.random.default_rng(0), classes=3, mix=mix), sink)
        found.append(sink.getvalue())
    return found


def _image(data: bytes) -> None:
    with contextlib.suppress(LabelPoolError):
        width, height = image_size(data, where=Path("image"))
        if width * height > 1 << 20:
            # Decoding takes long then, and teaches nothing about headers.
            return
    decode_image(data, where=Path("image"))


_CODECS = {
    "codec-f16": ("floats.py", ("f16",)),
    "codec-f32-plain": ("floats.py", ("f32-plain",)),
    "codec-klt": ("klt.py", ("klt",)),
    # One target for several golden pools.
    "codec-int": ("affine.py", ("int4", "int6", "int8")),
    "codec-topk": ("topk.py", ("topk-3", "topk-3-8")),
}
TARGETS: dict[str, Target] = {
    "manifest": Target(
        run=partial(Manifest.parse, where="pool.json"),
        seeds=partial(_golden, "*/pool.json"),
        parsers=("format/strict_json.py", "format/manifest.py"),
    ),
    "index": Target(
        run=_index,
        seeds=partial(_golden, "*/batches-*.parquet"),
        parsers=("pool/index.py", "io/verified_parquet.py"),
    ),
    **{
        name: Target(
            run=partial(_decode, pools), seeds=partial(_payloads, pools), parsers=(f"codecs/{file}",)
        )
        for name, (file, pools) in _CODECS.items()
    },
    "pickle": Target(run=_pickle, seeds=_pickles, parsers=("interop/torch_file.py",)),
    "torch-zip": Target(
        run=_torch_zip, seeds=_torch_zips, parsers=("interop/torch_file.py", "interop/batch_file.py")
    ),
    "image": Target(run=_image, seeds=lambda: list(image_seeds()), parsers=("render/decode.py",)),
}
