"""Do students notice the codec? f16 against klt at .97, and top-k in the bytes of klt.

    python -m benchmarks.codec_students --json OUT

Two chains from real images to students: scikit-learn's digits at 16 px and 20 classes of Tiny-ImageNet at
32 px, with narrow ResNets. A teacher is trained, labels some real images of each class, the pool is encoded,
and students are trained from each pool with the paper's loss (KL at T = 20), everything else equal. A
difference counts only if it is larger than what another seed makes.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.digits import write_digits
from benchmarks.common.harness import parsed, write_json
from benchmarks.common.image_data import unpack_data
from lpld_core.relabel.build import build_pool
from lpld_core.settings import BuildSettings, ViewSettings
from lpld_core.teachers.ensemble import Ensemble
from lpld_core.teachers.teacher import load_teacher
from lpld_core.train.evaluate import ValidationSet
from lpld_core.train.settings import TrainSettings
from lpld_core.train.student import train_student
from lpld_core.train.train_teacher import TeacherJob, train_teacher
from lpld_labels import PoolReader
from lpld_labels.codecs import codec_named
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.encode import LabelSample, encode_pool
from lpld_labels.transforms.settings import EncodeSettings

FIDELITY, TEMPERATURE = 0.97, 20.0


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A data set and how much of everything: image size, network, and epochs of teacher and students."""

    name: str
    size: int
    network: str
    images_per_class: int
    batch_size: int
    teacher_epochs: int
    epochs: int
    learning_rate: float
    crop_scale: tuple[float, float] = (0.4, 1.0)
    flip: bool = False


CHAINS = (
    Chain(
        name="digits",
        size=16,
        network="small-resnet10:width=16,stem_stride=2",
        images_per_class=10,
        batch_size=20,
        teacher_epochs=15,
        epochs=100,
        learning_rate=0.002,
    ),
    Chain(
        name="tiny20",
        size=32,
        network="small-resnet10:width=16,stem_stride=1",
        images_per_class=20,
        batch_size=50,
        teacher_epochs=12,
        epochs=100,
        learning_rate=0.002,
        flip=True,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Folders:
    """Where images are: for the teacher, to be labelled, to judge by."""

    teacher: Path
    labelled: Path
    validation: Path


def run_chain(
    chain: Chain,
    root: Path,
    *,
    seeds: Sequence[int],
    data: Path | None = None,
    teacher_images: int = 500,
) -> dict[str, Any]:
    """Go from images to students and return what came out, pool by pool.

    data: a directory with train/ and val/ instead of the chain's own images.
    teacher_images: how many of each class the teacher learns from, at most.
    """
    folders = _folders(chain, root, data, teacher_images)
    validation = ValidationSet(folders.validation, size=(chain.size, chain.size))
    teacher_top1 = _train_teacher(chain, root, folders, validation)
    plain = _label(chain, root, folders)
    pools = {"f16": plain, **_encoded(plain, root)}
    return {
        "chain": chain.name,
        "teacher_top1": teacher_top1,
        "seeds": list(seeds),
        "pools": [
            _trained(chain, name, pool, root, folders, validation, seeds) for name, pool in pools.items()
        ],
    }


def _folders(chain: Chain, root: Path, data: Path | None, teacher_images: int) -> Folders:
    if chain.name == "digits":
        made = write_digits(root / "images", per_class=chain.images_per_class)
        return Folders(teacher=made.teacher, labelled=made.distilled, validation=made.validation)
    if data is None:
        unpack_data(chain.name, root / "images")
    else:
        shutil.copytree(data, root / "images")
    train, labelled = root / "images" / "train", root / "images" / "labelled"
    for folder in sorted(train.iterdir()):
        files = sorted(folder.iterdir())
        for number, file in enumerate(files):
            if number < chain.images_per_class:
                target = labelled / folder.name / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(file, target)
            elif number >= chain.images_per_class + teacher_images:
                file.unlink()
    return Folders(teacher=train, labelled=labelled, validation=root / "images" / "val")


def _train_teacher(chain: Chain, root: Path, folders: Folders, validation: ValidationSet) -> float:
    views = ViewSettings(batch_size=64, crop_scale=chain.crop_scale, flip=chain.flip)
    recipe = TrainSettings(
        epochs=chain.teacher_epochs,
        learning_rate=0.002,
        weight_decay=0.05,
        decay_on="all",
        rate_steps="step",
        label_smoothing=0.1,
    )
    job = TeacherJob(
        out=root / "teacher.safetensors",
        network=chain.network,
        size=(chain.size, chain.size),
        views=views,
        recipe=recipe,
    )
    accuracy = train_teacher(folders.teacher, job, validation=validation)
    return accuracy.top1 if accuracy is not None else 0.0


def _label(chain: Chain, root: Path, folders: Folders) -> Path:
    teacher = load_teacher(chain.network, weights=root / "teacher.safetensors")
    settings = BuildSettings(
        crop_scale=chain.crop_scale,
        flip=chain.flip,
        mix="cutmix",
        epochs=chain.epochs,
        batch_size=chain.batch_size,
    )
    pool = root / "f16"
    build_pool(folders.labelled, pool, settings, ensemble=Ensemble([teacher]))
    return pool


def _encoded(plain: Path, root: Path) -> dict[str, Path]:
    """Encode with klt, and with the largest top-k that is no larger."""
    with PoolReader(plain) as pool:
        settings = EncodeSettings(codec="klt", fidelity=FIDELITY, temperature=TEMPERATURE)
        made = encode_pool(pool, root / "klt", settings)
        room = pool_bytes(made.manifest)
        sample = LabelSample(pool, settings)
        sizes = {
            name: sample.weigh(codec_named(name)).total(len(pool), pool.manifest.counts.rows)
            for name in (f"topk:{k}:{bits}" for k in range(1, pool.classes) for bits in (16, 8))
        }
        fitting = [name for name, size in sizes.items() if size <= room] or [
            min(sizes, key=sizes.__getitem__)
        ]
        top_k = max(fitting, key=lambda name: (int(name.split(":")[1]), sizes[name]))
        encode_pool(pool, root / "topk", EncodeSettings(codec=top_k))
    return {f"klt {FIDELITY:g}": root / "klt", top_k: root / "topk"}


def _trained(
    chain: Chain,
    name: str,
    location: Path,
    root: Path,
    folders: Folders,
    validation: ValidationSet,
    seeds: Sequence[int],
) -> dict[str, Any]:
    top1 = []
    with PoolReader(location) as pool:
        labels = sum(entry.bytes for role in ("labels", "codec") for entry in pool.manifest.files_of(role))
        for seed in seeds:
            settings = TrainSettings(
                sampling="batches",
                epochs=chain.epochs,
                learning_rate=chain.learning_rate,
                temperature=TEMPERATURE,
                student=chain.network,
                seed=seed,
                evaluate_every=chain.epochs,
            )
            out = root / "students" / f"{location.name}-{seed}"
            result = train_student(pool, folders.labelled, out, settings, validation=validation)
            top1.append(result.accuracy.top1 if result.accuracy is not None else 0.0)
        encoded = [step for step in pool.header.lineage if step.operation == "encode"]
        return {
            "labels": name,
            "pool_bytes": pool_bytes(pool.manifest),
            "label_bytes_per_row": round(labels / pool.manifest.counts.rows, 2),
            "fidelity": encoded[-1].parameters["fidelity"] if encoded else None,
            "top1": [round(value, 5) for value in top1],
            "top1_mean": round(float(np.mean(top1)), 5),
            "top1_std": round(float(np.std(top1, ddof=1)), 5) if len(top1) > 1 else None,
        }


def verdict(result: dict[str, Any]) -> str:
    """Say whether klt students match f16 students within the spread of the seeds."""
    f16, klt = result["pools"][:2]
    difference = klt["top1_mean"] - f16["top1_mean"]
    spread = max(f16["top1_std"] or 0.0, klt["top1_std"] or 0.0)
    place = "within" if abs(difference) <= spread else "outside"
    points = f"{100 * difference:+.2f} points"
    return f"{result['chain']}: klt - f16 = {points}, {place} the spread of {100 * spread:.2f}"


def main() -> None:
    """Train, show and write."""
    parser = argparse.ArgumentParser(description="Students of f16, klt and top-k labels.")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--seeds", type=int, default=3, help="students per pool")
    parser.add_argument("--data", type=Path, help="directory with train/ and val/ instead of tiny20")
    parser.add_argument("--quick", action="store_true", help="digits, two epochs and one seed; no result")
    arguments = parsed(parser)
    torch.set_num_threads(1)
    console = Console(width=130)
    chains = [replace(CHAINS[0], epochs=2, teacher_epochs=1)] if arguments.quick else CHAINS
    results = []
    for chain in chains:
        with tempfile.TemporaryDirectory() as folder:
            seeds = range(1 if arguments.quick else arguments.seeds)
            results.append(run_chain(chain, Path(folder), seeds=seeds, data=arguments.data))
        _show(console, results[-1])
    if arguments.json:
        command = "python -m benchmarks.codec_students --json OUT" + " --quick" * arguments.quick
        write_json(arguments.json, benchmark="codec_students", command=command, results=results)


def _show(console: Console, result: dict[str, Any]) -> None:
    table = Table(
        title=f"{result['chain']}, teacher {100 * result['teacher_top1']:.1f} %", title_justify="left"
    )
    for name in ("labels", "pool bytes", "label bytes/row", "kept T=20", "top-1, mean", "std", "each"):
        table.add_column(name, justify="left" if name == "labels" else "right")
    for row in result["pools"]:
        kept = row["fidelity"]["kept"]["20"] if row["fidelity"] else 1.0
        table.add_row(
            row["labels"],
            f"{row['pool_bytes']:,}",
            f"{row['label_bytes_per_row']:.1f}",
            f"{kept:.4f}",
            f"{100 * row['top1_mean']:.2f}",
            "" if row["top1_std"] is None else f"{100 * row['top1_std']:.2f}",
            " ".join(f"{100 * value:.1f}" for value in row["top1"]),
        )
    console.print(table)
    console.print(verdict(result), highlight=False)


if __name__ == "__main__":
    main()
