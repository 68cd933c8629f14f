"""``lpld-labels demo``: the whole way from images to students, on data that needs no download."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .console import human_bytes, output, progress_bar, talk

if TYPE_CHECKING:
    from lpld_core.digits import DigitFolders
    from lpld_core.presets import LabelRecipe, TrainRecipe

NETWORK = "small-resnet10:width=16,stem_stride=2"
VIEW = 16
BATCH_SIZE = 20
TEACHER_BATCH_SIZE = 64
CROPS = (0.4, 1.0)
LEARNING_RATE = 0.002
GREY = ((0.3,) * 3, (0.35,) * 3)
"""Mean and std of the digits."""
RATIOS = (1, 10, 40)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the final table; sizes are None where nothing is stored."""

    name: str
    batches: int | None
    label_bytes: int | None
    pool_bytes: int | None
    top1: float


@click.command("demo")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("demo_output"),
    show_default=True,
    help="Directory for images, pools, students, the table and the plot.",
)
@click.option("--epochs", type=click.IntRange(1), default=100, show_default=True, help="Of the students.")
@click.option(
    "--teacher-epochs", type=click.IntRange(1), default=15, show_default=True, help="Of the teacher."
)
def command(out: Path, epochs: int, teacher_epochs: int) -> None:
    """Go the whole way on scikit-learn's handwritten digits: about a minute on two cores.

    Trains a small teacher, labels ten images of each digit with it at 1x, 10x and 40x fewer labels,
    trains a student from each pool and one from hard labels of the same images, and ends with a table
    and a plot of label bytes against accuracy. Every step is a command you can run yourself.
    """
    import torch

    start = time.monotonic()
    # The network is so small that a second thread would mostly wait for the first.
    torch.set_num_threads(1)
    _forget_earlier(out)
    folders = _digits(out)
    lines = [_teacher(out, folders, teacher_epochs), _hard_labels(out, folders, epochs)]
    lines += [_pool_and_student(out, folders, epochs, ratio) for ratio in RATIOS]
    _show(lines)
    document = {"seconds": round(time.monotonic() - start, 1), "lines": [asdict(line) for line in lines]}
    (out / "table.json").write_text(json.dumps(document, indent=2) + "\n")
    _plot(lines, out / "accuracy.png")
    output().print(
        f"{document['seconds']} s; table in {out / 'table.json'}, plot in {out / 'accuracy.png'}",
        highlight=False,
    )


def _forget_earlier(out: Path) -> None:
    """Remove what an earlier demo wrote, and nothing else."""
    import shutil

    names = ["digits", *(f"{kind}_{ratio}x" for kind in ("pool", "student") for ratio in RATIOS)]
    for name in names:
        shutil.rmtree(out / name, ignore_errors=True)


def _digits(out: Path) -> DigitFolders:
    from lpld_core.digits import write_digits

    talk().print("[bold]digits[/]: 1,797 images of 10 classes; 100 to label, 500 to judge by, rest to teach")
    return write_digits(out / "digits")


def _teacher(out: Path, folders: DigitFolders, epochs: int) -> Line:
    from lpld_core.presets import LabelRecipe
    from lpld_core.train_teacher import TEACHER_RECIPE

    views = LabelRecipe(batch_size=TEACHER_BATCH_SIZE, crop_scale=CROPS, flip_probability=None)
    recipe = replace(TEACHER_RECIPE, epochs=epochs)
    top1 = _train_on_truth("teacher", out / "teacher.safetensors", folders.teacher, folders, views, recipe)
    return Line(name="teacher", batches=None, label_bytes=None, pool_bytes=None, top1=top1)


def _hard_labels(out: Path, folders: DigitFolders, epochs: int) -> Line:
    """Train on the same images, views, steps and schedule as the students, but on the true classes."""
    from lpld_core.presets import PRESETS, LabelRecipe

    views = LabelRecipe(batch_size=BATCH_SIZE, crop_scale=CROPS, flip_probability=None, mix="cutmix")
    recipe = replace(PRESETS["imagenet1k"].train, epochs=epochs, learning_rate=LEARNING_RATE)
    weights = out / "hard_labels.safetensors"
    top1 = _train_on_truth("student of hard labels", weights, folders.distilled, folders, views, recipe)
    return Line(name="hard labels", batches=None, label_bytes=None, pool_bytes=None, top1=top1)


def _train_on_truth(
    what: str, weights: Path, images: Path, folders: DigitFolders, views: LabelRecipe, recipe: TrainRecipe
) -> float:
    from lpld_core.evaluate import ValidationSet
    from lpld_core.train_teacher import TeacherJob, train_teacher

    job = TeacherJob(
        out=weights,
        network=NETWORK,
        size=(VIEW, VIEW),
        views=views,
        recipe=recipe,
        mean=GREY[0],
        std=GREY[1],
    )
    validation = ValidationSet(folders.validation, size=(VIEW, VIEW))
    with progress_bar(what) as progress:
        accuracy = train_teacher(images, job, validation=validation, progress=progress)
    top1 = accuracy.top1 if accuracy is not None else 0.0
    talk().print(f"[bold]{what}[/]: top-1 {top1:.1%}", highlight=False)
    return top1


def _pool_and_student(out: Path, folders: DigitFolders, epochs: int, ratio: int) -> Line:
    pool, run = out / f"pool_{ratio}x", out / f"student_{ratio}x"
    settings = ("--epochs", epochs, "--batch-size", BATCH_SIZE, "--no-flip", "--crop-scale", *CROPS)
    teacher = ("--teacher", NETWORK, "--teacher-weights", out / "teacher.safetensors", "--threads", 1)
    _run("build", folders.distilled, pool, *teacher, *settings, "--ratio", ratio)
    where = ("--images", folders.distilled, "--val", folders.validation, "--out", run)
    recipe = ("--student", NETWORK, "--epochs", epochs, "--lr", LEARNING_RATE, "--threads", 1)
    often = ("--evaluate-every", epochs, "--save-every", epochs)
    _run("train", pool, *where, *recipe, *often)
    return _line(f"{ratio}x", pool, run)


def _run(*words: object) -> None:
    """Run one of our own commands, in this process, and show it."""
    from .main import group

    arguments = [str(word) for word in words]
    talk().print(f"[bold]$[/] lpld-labels {' '.join(arguments)}", highlight=False, soft_wrap=True)
    group.main(arguments, standalone_mode=False)


def _line(name: str, pool: Path, run: Path) -> Line:
    from lpld_labels.reader import PoolReader
    from lpld_labels.summary import summarise

    with PoolReader(pool) as reader:
        summary = summarise(reader)
    last = json.loads((run / "log.jsonl").read_text().splitlines()[-1])
    return Line(
        name=name,
        batches=summary.batches,
        label_bytes=summary.bytes.components["labels"],
        pool_bytes=summary.bytes.total,
        top1=last["top1"],
    )


def _show(lines: list[Line]) -> None:
    from rich.table import Table

    table = Table(title="Label bytes against accuracy (digits, 10 images per class)", title_justify="left")
    for column in ("labels", "label batches", "label bytes", "pool on disk", "top-1"):
        table.add_column(column, justify="left" if column == "labels" else "right")
    for line in lines:
        table.add_row(
            line.name,
            "" if line.batches is None else str(line.batches),
            "" if line.label_bytes is None else human_bytes(line.label_bytes),
            "" if line.pool_bytes is None else human_bytes(line.pool_bytes),
            f"{line.top1:.1%}",
        )
    output().print(table)


def _plot(lines: list[Line], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    pools = [(line.pool_bytes, 100 * line.top1, line.name) for line in lines if line.pool_bytes is not None]
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.plot([size for size, _, _ in pools], [top1 for _, top1, _ in pools], "o-", color="C0")
    for size, top1, name in pools:
        axes.annotate(name, (size, top1), (6, -12), textcoords="offset points")
    for line, style in zip(lines[:2], ("--", ":"), strict=True):
        axes.axhline(100 * line.top1, linestyle=style, color="0.4", label=line.name)
    axes.set(xscale="log", xlabel="pool on disk, bytes", ylabel="top-1 accuracy, %")
    axes.set_title("Digits, 10 images per class")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)
