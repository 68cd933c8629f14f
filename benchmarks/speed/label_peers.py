"""The same label batches in other containers, each read at random in its own best documented way.

A record is one label batch: fp16 labels [B, C], crops, flips, mix partners, strength and box.
`pip install "lpld-labels[peers]"` installs the containers; those that are missing or fail are listed with the
reason, and the others are measured.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpld_labels import LabelBatch

Record = dict[str, Any]
Read = Callable[[int], Record]
"""Number of a batch -> its record, labels as an fp16 array."""


def record_of(batch: LabelBatch) -> Record:
    """Return a batch as plain arrays and numbers."""
    if batch.mix is None or batch.mix.box is None:
        raise ValueError("the peers are given CutMix pools")
    return {
        "labels": np.ascontiguousarray(batch.labels),
        "images": batch.images.copy(),
        "crops": batch.crops.copy(),
        "flips": batch.flips.astype(np.uint8),
        "partner": batch.mix.partner.copy(),
        "box": np.array(batch.mix.box, np.int32),
        "strength": float(batch.mix.strength),
    }


ARRAYS = ("labels", "images", "crops", "flips", "partner", "box")


def torch_files(folder: Path, batches: list[LabelBatch]) -> Read:
    """One torch.save file per batch: what relabelling programs write today."""
    folder.mkdir()
    for number, batch in enumerate(batches):
        record = record_of(batch)
        tensors = {name: torch.from_numpy(record[name]) for name in ARRAYS}
        torch.save({**tensors, "strength": record["strength"]}, folder / f"batch_{number}.tar")

    def read(number: int) -> Record:
        loaded = torch.load(folder / f"batch_{number}.tar", weights_only=False)
        return {**loaded, "labels": loaded["labels"].numpy()}

    return read


def mosaicml_streaming(folder: Path, batches: list[LabelBatch]) -> Read:
    """MDS shards; each array is an `ndarray` column of fixed shape where it can be."""
    from streaming import MDSWriter, StreamingDataset

    columns = {"strength": "float64"}
    for name, array in record_of(batches[0]).items():
        if name in ARRAYS:
            shape = ",".join(map(str, array.shape))
            columns[name] = f"ndarray:{array.dtype}:{shape}"
    with MDSWriter(out=str(folder), columns=columns) as writer:
        for batch in batches:
            writer.write(record_of(batch))
    dataset = StreamingDataset(local=str(folder), batch_size=1, shuffle=False)
    return lambda number: dict(dataset[number])


def webdataset_indexed(folder: Path, batches: list[LabelBatch]) -> Read:
    """Tar shards read through WebDataset's indexed reader (wids): .npy members, random access."""
    import wids

    shards = _write_tars(folder, batches)
    dataset = wids.ShardListDataset(
        [{"url": str(path), "nsamples": count} for path, count in shards],
        cache_dir=str(folder / "cache"),
        keep=True,
        transformations=_decode_npy,
    )
    return lambda number: dict(dataset[number])


def _decode_npy(sample: Mapping[str, Any]) -> Record:
    return {
        name.removeprefix(".").removesuffix(".npy"): np.load(stream)
        for name, stream in sample.items()
        if name.endswith(".npy")
    }


def _write_tars(folder: Path, batches: list[LabelBatch], per_shard: int = 64) -> list[tuple[Path, int]]:
    folder.mkdir()
    shards = []
    for start in range(0, len(batches), per_shard):
        path = folder / f"shard-{start:05d}.tar"
        with tarfile.open(path, "w") as archive:
            for number, batch in enumerate(batches[start : start + per_shard], start):
                for name, value in record_of(batch).items():
                    sink = io.BytesIO()
                    np.save(sink, np.asarray(value))
                    info = tarfile.TarInfo(f"{number:06d}.{name}.npy")
                    info.size = sink.tell()
                    archive.addfile(info, io.BytesIO(sink.getvalue()))
        shards.append((path, len(batches[start : start + per_shard])))
    return shards


def huggingface_datasets(folder: Path, batches: list[LabelBatch]) -> Read:
    """An Arrow dataset on disk, memory-mapped, read in its numpy format."""
    import datasets

    first = record_of(batches[0])
    features = {"strength": datasets.Value("float64")}
    for name in ARRAYS:
        array = first[name]
        kind = str(array.dtype)
        features[name] = (
            datasets.Array2D(array.shape, kind)
            if array.ndim == 2
            else datasets.Sequence(datasets.Value(kind), length=len(array))
        )

    def records() -> Iterator[Record]:
        yield from map(record_of, batches)

    datasets.disable_progress_bars()
    made = datasets.Dataset.from_generator(
        records, features=datasets.Features(features), cache_dir=str(folder / "cache")
    )
    made.save_to_disk(str(folder / "data"))
    dataset = datasets.load_from_disk(str(folder / "data")).with_format("numpy")
    return lambda number: dict(dataset[number])


PEERS: dict[str, Callable[[Path, list[LabelBatch]], Read]] = {
    "torch.load per batch": torch_files,
    "MosaicML Streaming": mosaicml_streaming,
    "WebDataset (wids)": webdataset_indexed,
    "Hugging Face datasets": huggingface_datasets,
}
"""Name -> function that writes the batches and returns a reader."""


def peer_folder(folder: Path, peer: str) -> Path:
    """Return where a container stores its files."""
    return folder / "".join(letter for letter in peer if letter.isalnum())


def open_peers(folder: Path, batches: list[LabelBatch]) -> tuple[dict[str, Read], dict[str, str]]:
    """Write and read the batches in every container; return the readers, and why the others failed."""
    reads: dict[str, Read] = {}
    failed: dict[str, str] = {}
    for name, make in PEERS.items():
        try:
            read = make(peer_folder(folder, name), batches)
            _check(read, batches)
        except Exception as error:  # noqa: BLE001 - a broken peer must not end the others' measurements
            failed[name] = f"{type(error).__name__}: {error}"
        else:
            reads[name] = read
    return reads, failed


def _check(read: Read, batches: list[LabelBatch]) -> None:
    for number, batch in enumerate(batches):
        if not np.array_equal(read(number)["labels"], batch.labels):
            raise RuntimeError(f"labels of batch {number} differ from those written")
