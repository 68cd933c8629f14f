"""``lpld-labels demo``: the whole way from real images to students, on data that needs no download."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .console import stderr_console, stdout_console
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_core.images.digits import DigitFolders
    from lpld_core.training.presets import LabelRecipe
    from lpld_core.training.settings import TrainSettings

NETWORK = "small-resnet10:width=16,stem_stride=2"
VIEW = 16
BATCH_SIZE = 20
TEACHER_BATCH_SIZE = 64
CROPS = (0.4, 1.0)
LEARNING_RATE = 0.002
GREY = ((0.3,) * 3, (0.35,) * 3)
"""Mean and std of the digits."""
METHODS = ("lpld", "sre2l")
RATIOS = {"real": (1,), "lpld": (1, 10, 40), "sre2l": (1, 10, 40)}
"""Prune ratios of the pools, by the images they label."""


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
@click.option(
    "--iterations", type=click.IntRange(1), default=150, show_default=True, help="Of image recovery."
)
def command(out: Path, epochs: int, teacher_epochs: int, iterations: int) -> None:
    """Go the whole way on scikit-learn's handwritten digits: two to three minutes on two cores.

    Trains a small teacher, gathers class statistics, makes ten images of each digit class by class
    (lpld) and across classes (sre2l), labels them and ten real ones, prunes the labels 10x and 40x,
    trains a student from each pool and one from the true classes of the real images, and ends with a
    table and a plot of bytes against accuracy. Every step is a command you can run yourself.
    """
    import torch

    from .demo_report import Line, pool_line, save_report, show_report

    start = time.monotonic()
    # The network is so small that a second thread would mostly wait for the first.
    torch.set_num_threads(1)
    _forget_earlier(out)
    folders = _digits(out)
    lines = [Line(name="teacher", top1=_teacher(out, folders, teacher_epochs))]
    lines.append(Line(name="real images, true classes", top1=_hard_labels(out, folders, epochs)))
    _run("squeeze", folders.teacher, out / "statistics.safetensors", *_teacher_words(out))
    for method in METHODS:
        _recover(out, folders, method, iterations)
    _analyze(out, folders)
    for source, ratios in RATIOS.items():
        images = folders.distilled if source == "real" else out / source
        for ratio in ratios:
            pool, run = _pool(out, source, images, ratio, epochs), out / f"student_{source}_{ratio}x"
            _train(images, pool, run, folders, epochs)
            lines.append(pool_line(source, ratio, pool, run))
    show_report(lines)
    seconds = time.monotonic() - start
    save_report(out, lines, seconds)
    sheets = ", ".join(str(out / method / "contact_sheet.png") for method in METHODS)
    stdout_console().print(
        f"{seconds:.0f} s; table in {out / 'table.json'}, plot in {out / 'accuracy.png'}, images in {sheets}",
        highlight=False,
        soft_wrap=True,
    )


def _forget_earlier(out: Path) -> None:
    """Remove what an earlier demo wrote, and nothing else."""
    import shutil

    from lpld_core.unfinished import unfinished_beside

    names = ["digits", *METHODS]
    names += [f"{kind}_{s}_{r}x" for kind in ("pool", "student") for s in RATIOS for r in RATIOS[s]]
    for name in names:
        shutil.rmtree(out / name, ignore_errors=True)
    for name in ("teacher", "hard_labels", "statistics"):
        (out / f"{name}.safetensors").unlink(missing_ok=True)
        shutil.rmtree(unfinished_beside(out / f"{name}.safetensors"), ignore_errors=True)


def _digits(out: Path) -> DigitFolders:
    from lpld_core.images.digits import write_digits

    stderr_console().print(
        "[bold]digits[/]: 1,797 images of 10 classes; 500 to judge by, 100 real ones to compare with"
    )
    return write_digits(out / "digits")


def _teacher(out: Path, folders: DigitFolders, epochs: int) -> float:
    from lpld_core.training.presets import LabelRecipe
    from lpld_core.training.train_teacher import TEACHER_RECIPE

    views = LabelRecipe(batch_size=TEACHER_BATCH_SIZE, crop_scale=CROPS, flip_probability=None)
    recipe = replace(TEACHER_RECIPE, epochs=epochs)
    return _train_on_truth("teacher", out / "teacher.safetensors", folders.teacher, folders, views, recipe)


def _hard_labels(out: Path, folders: DigitFolders, epochs: int) -> float:
    """Train on as many images, views and steps as the students, but on the true classes of real images."""
    from lpld_core.training.presets import LabelRecipe, preset_named

    views = LabelRecipe(batch_size=BATCH_SIZE, crop_scale=CROPS, flip_probability=None, mix="cutmix")
    recipe = replace(preset_named("imagenet1k").train, epochs=epochs, learning_rate=LEARNING_RATE)
    weights = out / "hard_labels.safetensors"
    return _train_on_truth("student of true classes", weights, folders.distilled, folders, views, recipe)


def _train_on_truth(
    what: str, weights: Path, images: Path, folders: DigitFolders, views: LabelRecipe, recipe: TrainSettings
) -> float:
    from lpld_core.training.evaluate import ValidationSet
    from lpld_core.training.train_teacher import TeacherJob, train_teacher

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
    stderr_console().print(f"[bold]{what}[/]: top-1 {top1:.1%}", highlight=False)
    return top1


def _teacher_words(out: Path) -> tuple[object, ...]:
    return ("--teacher", NETWORK, "--teacher-weights", out / "teacher.safetensors", "--threads", 1)


def _recover(out: Path, folders: DigitFolders, method: str, iterations: int) -> None:
    schedule = ("--ipc", 10, "--iterations", iterations, "--roll", 1, "--format", "png")
    source = ("--statistics", out / "statistics.safetensors") if method == "lpld" else ()
    names = ("--real", folders.teacher) if method != "lpld" else ()
    _run("recover", out / method, "--method", method, *schedule, *source, *names, *_teacher_words(out))


def _pool(out: Path, source: str, images: Path, ratio: int, epochs: int) -> Path:
    """Build the full pool, or prune it."""
    whole, pool = out / f"pool_{source}_1x", out / f"pool_{source}_{ratio}x"
    if ratio == 1:
        settings = ("--epochs", epochs, "--batch-size", BATCH_SIZE, "--no-flip", "--crop-scale", *CROPS)
        _run("build", images, whole, *_teacher_words(out), *settings)
    else:
        _run("prune", whole, pool, "--ratio", ratio)
    return pool


def _train(images: Path, pool: Path, run: Path, folders: DigitFolders, epochs: int) -> None:
    where = ("--images", images, "--val", folders.validation, "--out", run)
    recipe = ("--student", NETWORK, "--epochs", epochs, "--lr", LEARNING_RATE, "--threads", 1)
    often = ("--evaluate-every", epochs, "--save-every", epochs)
    _run("train", pool, *where, *recipe, *often)


def _analyze(out: Path, folders: DigitFolders) -> None:
    images = [out / method for method in METHODS]
    _run("analyze", *images, "--real", folders.teacher, *_teacher_words(out), "--plot", out / "diversity.png")


def _run(*words: object) -> None:
    """Run one of our own commands, in this process, and show it."""
    from .main import group

    arguments = [str(word) for word in words]
    stderr_console().print(f"[bold]$[/] lpld-labels {' '.join(arguments)}", highlight=False, soft_wrap=True)
    group.main(arguments, standalone_mode=False)
