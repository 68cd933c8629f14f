"""The steps of the demo: one teacher, then images, pools and students from several seeds.

Every step is a command that can be run by hand; demo.log has them with what they said.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lpld_cli.console import stderr_console
from lpld_cli.main import group
from lpld_cli.progress import progress_bar

from benchmarks.common.digits import DigitFolders, write_mnist
from lpld_core.settings import ViewSettings
from lpld_core.unfinished import unfinished_beside

if TYPE_CHECKING:
    from lpld_core.train.settings import TrainSettings
    from lpld_labels.exec.job import Steps

PROCESSES = 2
Step = Callable[[], None]
"""Prints what it does. Pickled, so a module's function or a partial of one."""
Chain = Sequence[Step]
"""Steps of which each needs the one before."""


NETWORK = "small-resnet10:width=16,stem_stride=2,channels=1"
SIDE = 28
BATCH_SIZE = 50
TEACHER_BATCH_SIZE = 64
CROPS = (0.4, 1.0)
LEARNING_RATE = 0.002
GREY = ((0.13,) * 3, (0.31,) * 3)
"""Mean and std of the digits."""
IPC = 10
METHODS = ("lpld", "sre2l")
RATIO = 10
RATIOS = {"real": (1,), "sre2l": (1, RATIO), "lpld": (1, RATIO)}
"""Prune ratios of the f16 pools, by the images they label."""


@dataclass(frozen=True, kw_only=True)
class Demo:
    """One seed's images, pools and students, and how much of them there is. All seeds share the teacher."""

    out: Path
    seed: int = 0
    epochs: int = 200
    teacher_epochs: int = 8
    iterations: int = 200

    @property
    def place(self) -> Path:
        """The directory of what follows from the seed."""
        return self.out / f"seed-{self.seed}"

    @property
    def folders(self) -> DigitFolders:
        """Image folders of the digits."""
        return DigitFolders.below(self.out / "digits")

    def images(self, source: str) -> Path:
        """Return the folder of images that pools of this source label."""
        return self.folders.distilled if source == "real" else self.place / source

    def pool(self, source: str, form: str) -> Path:
        """Return a pool's place. form: a ratio such as 10x, or klt."""
        return self.place / "pools" / f"{source}_{form}"

    def student(self, source: str, form: str) -> Path:
        """Return the run directory of a pool's student."""
        return self.place / "students" / f"{source}_{form}"

    @property
    def teacher_words(self) -> tuple[object, ...]:
        """Options that name the teacher."""
        return ("--teacher", NETWORK, "--teacher-weights", self.out / "teacher.safetensors", "--threads", 1)


def run_demo(demos: Sequence[Demo]) -> float:
    """Make everything; return the teacher's accuracy. demos: one for each seed, alike otherwise."""
    first = demos[0]
    _forget_earlier(first.out)
    log = DemoLog(first.out / "demo.log")
    _digits(first)
    teacher = _teacher(first)
    _squeeze(first, log)
    seconds = run_chains(
        "images and their labels", [one for demo in demos for one in _label_chains(demo)], log
    )
    _say("images and their labels", "real, sre2l, lpld; pruned and encoded", seconds)
    seconds = run_chains("students", [one for demo in demos for one in _student_chains(demo)], log)
    _say("students", f"{len(demos)} from each kind of pool, {len(demos)} from true classes", seconds)
    return teacher


def _say(what: str, result: str, seconds: float) -> None:
    stderr_console().print(f"[bold]{what}[/]: {result} ({seconds:.0f} s)", highlight=False, soft_wrap=True)


def _forget_earlier(out: Path) -> None:
    """Remove what an earlier demo wrote, and nothing else."""
    out.mkdir(parents=True, exist_ok=True)
    for folder in (out / "digits", *out.glob("seed-*")):
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("teacher", "statistics"):
        (out / f"{name}.safetensors").unlink(missing_ok=True)
        shutil.rmtree(unfinished_beside(out / f"{name}.safetensors"), ignore_errors=True)


def _statistics(demo: Demo) -> Path:
    return demo.out / "statistics.safetensors"


def _digits(demo: Demo) -> None:
    start = time.monotonic()
    write_mnist(demo.out / "digits", per_class=IPC)
    _say("digits", "3,900 for the teacher, 100 to label, 1,000 to judge by", time.monotonic() - start)


def _teacher(demo: Demo) -> float:
    from lpld_core.train.train_teacher import TEACHER_RECIPE

    start = time.monotonic()
    views = ViewSettings(batch_size=TEACHER_BATCH_SIZE, crop_scale=CROPS, flip=False)
    recipe = replace(TEACHER_RECIPE, epochs=demo.teacher_epochs)
    weights = demo.out / "teacher.safetensors"
    top1 = _train_on_truth("teacher", weights, demo.folders.teacher, demo, views, recipe)
    _say("teacher", f"top-1 {top1:.1%}", time.monotonic() - start)
    return top1


def _squeeze(demo: Demo, log: DemoLog) -> None:
    start = time.monotonic()
    words = ("squeeze", demo.folders.teacher, _statistics(demo), *demo.teacher_words)
    run_step(partial(run_command, *words), log)
    _say("statistics", "what the teacher remembers of each class", time.monotonic() - start)


def train_on_true_classes(demo: Demo) -> None:
    """Train on as many images, views and steps as the students, but on the true classes of real images."""
    from lpld_core.train.settings import preset_named

    views = ViewSettings(batch_size=BATCH_SIZE, crop_scale=CROPS, flip=False, mix="cutmix")
    recipe = preset_named("imagenet1k").train
    recipe = replace(recipe, epochs=demo.epochs, learning_rate=LEARNING_RATE)
    weights = demo.place / "true_classes.safetensors"
    top1 = _train_on_truth("true classes", weights, demo.folders.distilled, demo, views, recipe)
    run = demo.student("real", "true")
    run.mkdir(parents=True)
    (run / "log.jsonl").write_text(json.dumps({"top1": top1}) + "\n")


def _train_on_truth(
    what: str, weights: Path, images: Path, demo: Demo, views: ViewSettings, recipe: TrainSettings
) -> float:
    import torch

    from lpld_core.train.evaluate import ValidationSet
    from lpld_core.train.train_teacher import TeacherJob, train_teacher

    torch.set_num_threads(1)
    job = TeacherJob(
        out=weights,
        network=NETWORK,
        size=(SIDE, SIDE),
        views=views,
        recipe=replace(recipe, mean=GREY[0], std=GREY[1], seed=demo.seed),
    )
    validation = ValidationSet(demo.folders.validation, size=(SIDE, SIDE))
    with progress_bar(what) as progress:
        accuracy = train_teacher(images, job, validation=validation, progress=progress)
    return accuracy.top1 if accuracy is not None else 0.0


def _label_chains(demo: Demo) -> list[Chain]:
    """One chain for each kind of image: make them, label them, prune the labels, encode them."""
    chains: list[Chain] = []
    for source in reversed(RATIOS):
        steps: list[Step] = [] if source == "real" else [_recover(demo, source)]
        whole = demo.pool(source, "1x")
        views = ("--epochs", demo.epochs, "--batch-size", BATCH_SIZE, "--no-flip", "--crop-scale", *CROPS)
        words = ("build", demo.images(source), whole, *demo.teacher_words, *views, "--seed", demo.seed)
        steps.append(partial(run_command, *words))
        for ratio in RATIOS[source][1:]:
            words = ("prune", whole, demo.pool(source, f"{ratio}x"), "--ratio", ratio)
            steps.append(partial(run_command, *words))
        if source == "lpld":
            steps.append(partial(fit_klt, demo))
        chains.append(steps)
    return chains


def _recover(demo: Demo, method: str) -> Step:
    # The teacher knows digits of which it saw 40 % or more; smaller crops would be asked to be digits too.
    schedule = ("--ipc", IPC, "--iterations", demo.iterations, "--roll", 2, "--smallest-crop", CROPS[0])
    source = ("--statistics", _statistics(demo)) if method == "lpld" else ("--real", demo.folders.teacher)
    words = ("recover", demo.images(method), "--method", method, *schedule, *source, *demo.teacher_words)
    return partial(run_command, *words, "--format", "png", "--seed", demo.seed)


def fit_klt(demo: Demo) -> None:
    """Fit klt labels into the bytes of the pruned pool; say so where they do not fit."""
    from lpld_labels import PoolReader
    from lpld_labels.errors import InvalidArgumentError
    from lpld_labels.pool.sizes import pool_bytes

    with PoolReader(demo.pool("lpld", f"{RATIO}x")) as pool:
        budget = pool_bytes(pool.manifest)
    words = ("plan", demo.pool("lpld", "1x"), "--budget", budget, "--codec", "klt", "--views", "drawn")
    # What plan asks for by itself was measured on 100 classes; here there are ten.
    enough = ("--min-fidelity", 0.97)
    try:
        run_command(*words, *enough, "--apply", demo.pool("lpld", "klt"))
    except InvalidArgumentError as error:
        print(f"klt does not fit into {budget} bytes: {error}")


def _student_chains(demo: Demo) -> list[Chain]:
    chains: list[Chain] = [[partial(train_on_true_classes, demo)]]
    forms = [(source, f"{ratio}x") for source, ratios in RATIOS.items() for ratio in ratios]
    if demo.pool("lpld", "klt").is_dir():
        forms.append(("lpld", "klt"))
    often = ("--evaluate-every", demo.epochs)
    paper = ("--preset", "imagenet1k")
    network = ("--student", NETWORK, "--epochs", demo.epochs, "--lr", LEARNING_RATE, "--threads", 1)
    recipe = (*paper, *network, *often)
    for source, form in forms:
        where = ("--images", demo.images(source), "--val", demo.folders.validation)
        words = ("train", demo.pool(source, form), *where, "--out", demo.student(source, form), *recipe)
        chains.append([partial(run_command, *words, "--seed", demo.seed)])
    return chains


class DemoLog:
    """Collects what steps say in one file, each step in one piece."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("")

    def add(self, said: str) -> None:
        """Append what one step said; the step may have failed."""
        with self.path.open("a") as file:
            file.write(said + "\n")


def run_chains(what: str, chains: Sequence[Chain], log: DemoLog) -> float:
    """Run chains side by side behind one bar that counts their steps; return the seconds it took."""
    from lpld_labels.exec.job import Job
    from lpld_labels.exec.local import LocalExecutor

    start = time.monotonic()
    total = sum(map(len, chains))
    job = Job(
        start=partial(_start, log),
        tasks=iter(chains),
        name=lambda chain: f"a chain of {len(chain)} steps",
        total=total,
        done=0,
        where=log.path,
    )
    with progress_bar(what) as progress:
        progress(0, total)
        LocalExecutor(PROCESSES).run(job, progress)
    return time.monotonic() - start


def run_step(step: Step, log: DemoLog) -> None:
    """Run one step in this process."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            step()
    finally:
        log.add(said.getvalue())


def run_command(*words: object) -> None:
    """Run one of our own commands and say which."""
    arguments = [str(word) for word in words]
    print(f"$ lpld-labels {' '.join(arguments)}", flush=True)
    group.main(arguments, standalone_mode=False)


def _start(log: DemoLog, number: int) -> _Runner:
    """Set up a process: the networks are so small that a second thread would mostly wait for the first."""
    import torch

    del number
    torch.set_num_threads(1)
    return _Runner(log)


@dataclass(frozen=True)
class _Runner:
    """Runs chains in a process of its own."""

    log: DemoLog

    def do(self, task: Chain, *, again: bool) -> Steps:
        """Run the steps of a chain, one after the other."""
        del again
        for step in task:
            run_step(step, self.log)
            yield 1
