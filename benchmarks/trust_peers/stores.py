"""The same label batches in each way to store them: how to write all, and how to read all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels import PoolReader, PoolWriter
from lpld_labels.codecs import codec_named
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation, PoolHeader, Teacher
from lpld_labels.format.records import BatchKey, LabelBatch

Labels = npt.NDArray[np.float16]
CLASSES, ROWS, BATCHES = 50, 16, 8


@dataclass(frozen=True, kw_only=True)
class Store:
    """packages: what it needs. write: puts batches below a folder. read: returns a digest of all of them."""

    packages: tuple[str, ...]
    write: Callable[[Path, Sequence[Labels]], None]
    read: Callable[[Path], str]


def batches() -> list[Labels]:
    """Return label batches: float16 [ROWS, CLASSES] each."""
    rng = np.random.default_rng(0)
    return [rng.normal(0, 3, (ROWS, CLASSES)).astype(np.float16) for _ in range(BATCHES)]


def digest(found: Sequence[Any]) -> str:
    """Return a digest over batches, their shapes and types."""
    state = hashlib.sha256()
    for labels in found:
        array = np.asarray(labels)
        state.update(f"{array.shape} {array.dtype}".encode() + np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def _write_pool(codec: str, folder: Path, labels: Sequence[Labels]) -> None:
    sizes = np.full(ROWS, 32, np.int32)
    images = ImageTable(
        paths=[f"class/{number}.png" for number in range(ROWS)],
        classes=np.zeros(ROWS, np.int32),
        widths=sizes,
        heights=sizes,
        digests=[bytes(16)] * ROWS,
    )
    header = PoolHeader(
        classes=CLASSES,
        batch_size=ROWS,
        augmentation=Augmentation(output_height=32, output_width=32, resize="torch"),
        teachers=(Teacher(name="resnet18"),),
    )
    crops = np.tile(np.array([0, 0, 32, 32], np.int32), (ROWS, 1))
    with PoolWriter(folder / "pool", header=header, images=images, codec=codec_named(codec)) as writer:
        for number, batch in enumerate(labels):
            writer.append(
                LabelBatch(
                    key=BatchKey(0, number),
                    images=np.arange(ROWS, dtype=np.int32),
                    crops=crops,
                    flips=np.zeros(ROWS, np.bool_),
                    labels=batch,
                )
            )
        writer.commit()


def _read_pool(folder: Path) -> str:
    with PoolReader(folder / "pool") as pool:
        return digest([batch.labels for batch in pool])


def _pool(codec: str) -> Store:
    return Store(
        packages=("lpld-labels",),
        write=lambda folder, labels: _write_pool(codec, folder, labels),
        read=_read_pool,
    )


def _write_torch(folder: Path, labels: Sequence[Labels]) -> None:
    import torch

    for number, batch in enumerate(labels):
        torch.save(torch.from_numpy(batch), folder / f"batch_{number}.tar")


def _read_torch(folder: Path) -> str:
    import torch

    return digest([torch.load(folder / f"batch_{n}.tar", weights_only=True).numpy() for n in range(BATCHES)])


def _write_safetensors(folder: Path, labels: Sequence[Labels]) -> None:
    from safetensors.numpy import save_file

    save_file({f"{number:05d}": batch for number, batch in enumerate(labels)}, folder / "labels.safetensors")


def _read_safetensors(folder: Path) -> str:
    from safetensors.numpy import load_file

    found = load_file(folder / "labels.safetensors")
    return digest([found[f"{number:05d}"] for number in range(BATCHES)])


def _write_zarr(folder: Path, labels: Sequence[Labels]) -> None:
    import zarr

    array = zarr.create_array(
        folder / "labels.zarr", shape=(BATCHES, ROWS, CLASSES), chunks=(1, ROWS, CLASSES), dtype="float16"
    )
    array[:] = np.stack(labels)


def _read_zarr(folder: Path) -> str:
    import zarr

    return digest(list(np.asarray(zarr.open_array(folder / "labels.zarr", mode="r")[:])))


def _write_streaming(folder: Path, labels: Sequence[Labels]) -> None:
    from streaming import MDSWriter

    columns = {"labels": f"ndarray:float16:{ROWS},{CLASSES}"}
    with MDSWriter(out=str(folder / "mds"), columns=columns, hashes=["sha1"]) as writer:
        for batch in labels:
            writer.write({"labels": batch})


def _read_streaming(folder: Path) -> str:
    from streaming import LocalDataset

    found = LocalDataset(str(folder / "mds"))
    return digest([found[number]["labels"] for number in range(BATCHES)])


STORES: dict[str, Store] = {
    "lpld-labels, f16": _pool("f16"),
    "lpld-labels, f16:plain": _pool("f16:plain"),
    "torch.load": Store(packages=("torch",), write=_write_torch, read=_read_torch),
    "safetensors": Store(packages=("safetensors",), write=_write_safetensors, read=_read_safetensors),
    "Zarr 3": Store(packages=("zarr",), write=_write_zarr, read=_read_zarr),
    "MosaicML Streaming": Store(
        packages=("mosaicml-streaming",), write=_write_streaming, read=_read_streaming
    ),
}
