"""Settings and schedules of a training run; presets of the published experiments. Does not import torch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from lpld_core.settings import BuildSettings, ImageCache, Precision, TeacherChoice
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.limits import MAX_INDEX, MAX_SEED
from lpld_labels.settings import Setting, check_settings, wrong_setting

Loss = Literal["kl", "mse+gt"]
Optimizer = Literal["adamw", "sgd"]
Schedule = Literal["cosine", "smoothed-cosine", "constant"]
RateSteps = Literal["epoch", "step"]
DecayOn = Literal["weights", "all"]
TemperatureSchedule = Literal["constant", "step", "cosine"]
StudentTemperature = Literal["teacher", "calibrated"]
Tail = Literal["stored", "none"]
ExperimentName = Literal["imagenet1k", "tiny", "imagenet21k", "imagenet1k-plus", "lpqld", "hald"]
Replay = Literal["auto", "cpu", "device"]
SamplingPolicy = Literal["batches", "epochs", "epoch-by-epoch", "shuffled", "stored"]

_DECIDES_NOTHING = (
    *("evaluate_every", "device", "replay", "workers", "image_cache"),
    "accumulate",  # only divides the rows of a step, like the number of processes
)
_NORMALISATION = "Normalisation per channel, if the pool records none."


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Settings of student training. Fields with option=False are set by presets, not on the command line."""

    student: Annotated[
        str | None, Setting("Network, as for --teacher.  [default: resnet18; small-resnet18 below 128 px]")
    ] = None
    seed: Annotated[int, Setting("Seed of row order and initial weights.", ge=0, le=MAX_SEED)] = 0
    epochs: Annotated[int, Setting("Length of training in passes over the images.", ge=1, le=MAX_INDEX)] = 300
    batch_size: Annotated[
        int | None, Setting("Rows per step, in all processes.  [default: the pool's batch size]", ge=1)
    ] = None
    sampling: Annotated[
        SamplingPolicy,
        Setting("How label batches are drawn: 'batches' draws with replacement, as the paper's presets do."),
    ] = "shuffled"
    phases: Annotated[
        str | None,
        Setting(
            "Labels by epochs, e.g. soft:50,hard:200,soft:50. Hard: true classes of fresh views.  "
            "[default: soft throughout]"
        ),
    ] = None
    hard_smoothing: Annotated[float, Setting("Label smoothing of hard labels.", ge=0, lt=1)] = 0.2
    mean: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None
    std: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None

    loss: Annotated[Loss, Setting("KL divergence, or MSE of logits + cross-entropy.")] = "kl"
    gamma: Annotated[float, Setting("Weight of cross-entropy in mse+gt.", option=False, ge=0)] = 0.1
    temperature: Annotated[float, Setting("Initial temperature of the labels (kl).", gt=0)] = 20.0
    temperature_schedule: Annotated[
        TemperatureSchedule,
        Setting(
            "How the temperature decays to 2. step: x 0.7 every 30 epochs; cosine: along a cosine. 'step' "
            "was 2.5 to 3.1 points better than 'constant' with few labels (f16 pruned 40x, 100 classes)."
        ),
    ] = "constant"
    student_temperature: Annotated[
        float | StudentTemperature,
        Setting("Equal to the labels' temperature, or fitted after every epoch.", option=False, gt=0),
    ] = "teacher"
    scale_by_t2: Annotated[bool, Setting("Multiply the kl loss by T squared.", option=False)] = False
    tail: Annotated[Tail, Setting("Labels of classes that top-k omits.", option=False)] = "stored"
    label_smoothing: Annotated[float, Setting("Label smoothing.", option=False, ge=0, lt=1)] = 0.0

    optimizer: Annotated[Optimizer, Setting("Optimiser.")] = "adamw"
    learning_rate: Annotated[float, Setting("Peak learning rate.", gt=0)] = 0.001
    weight_decay: Annotated[float, Setting("Weight decay.", option=False, ge=0)] = 0.01
    decay_on: Annotated[
        DecayOn, Setting("Weights that decay: all, or all but biases and normalisation.", option=False)
    ] = "weights"
    momentum: Annotated[float, Setting("Momentum of SGD.", option=False, ge=0, lt=1)] = 0.9
    schedule: Annotated[Schedule, Setting("How the learning rate decays.", option=False)] = "cosine"
    rate_steps: Annotated[RateSteps, Setting("How often the rate changes.", option=False)] = "epoch"
    warmup_epochs: Annotated[float, Setting("Number of epochs of linear warm-up.", option=False, ge=0)] = 0.0
    ema: Annotated[
        float | None, Setting("Save a moving average of the weights with this decay, e.g. 0.99.", ge=0, lt=1)
    ] = None

    evaluate_every: Annotated[int, Setting("Evaluate every N epochs and at the end.", ge=1)] = 10
    device: Annotated[str, Setting("Device: cpu, cuda, cuda:1, mps ...")] = "cpu"
    replay: Annotated[Replay, Setting("Where to render views. 'auto': on a CUDA GPU, if the images fit.")] = (
        "auto"
    )
    amp: Annotated[Precision, Setting("Mixed precision: faster on GPUs, but not bit-identical.")] = "off"
    workers: Annotated[
        int, Setting("Number of loader processes.  [default: 0 on a CPU, up to 8 for a GPU]", ge=0)
    ] = 0
    accumulate: Annotated[int, Setting("Forward passes per step; a higher number saves memory.", ge=1)] = 1
    image_cache: ImageCache = None

    def __post_init__(self) -> None:
        check_settings(self)
        if self.phases is not None and sum(epochs for _, epochs in parse_phases(self.phases)) != self.epochs:
            raise wrong_setting("phases", f"{self.epochs} epochs in all (--epochs)", self.phases)

    def deciding(self) -> dict[str, Any]:
        """Return the settings that affect the result of a run. The device is reduced to its type."""
        without = _DECIDES_NOTHING if self.phases else (*_DECIDES_NOTHING, "phases", "hard_smoothing")
        decided = {name: value for name, value in asdict(self).items() if name not in without}
        return {**decided, "device": self.device.partition(":")[0]}


WARM_UP_FROM = 0.01
"""Learning rate at the start of a warm-up, relative to the peak."""
TEMPERATURE_STEP_EPOCHS, TEMPERATURE_FACTOR, TEMPERATURE_MINIMUM = 30, 0.7, 2.0
"""LPQLD's temperature schedule."""
SMOOTHING = 2.0
"""Factor by which RDED's smoothed cosine decays more slowly."""


_PHASE = re.compile("(soft|hard):([1-9][0-9]{0,8})")


def parse_phases(phases: str) -> list[tuple[str, int]]:
    """Return (labels, number of epochs) for each phase. Labels are "soft" or "hard"."""
    found = [_PHASE.fullmatch(part) for part in phases.split(",")]
    if None in found:
        raise wrong_setting("phases", "labels and epochs, such as soft:50,hard:200,soft:50", phases)
    return [(part[1], int(part[2])) for part in found if part]


def labels_in(settings: TrainSettings, epoch: int) -> str:
    """Return "soft" or "hard", the labels of an epoch. Epochs after the last phase are "soft"."""
    for labels, epochs in parse_phases(settings.phases) if settings.phases else ():
        if epoch < epochs:
            return labels
        epoch -= epochs
    return "soft"


def rate_factor(settings: TrainSettings, epoch: float) -> float:
    """Return the learning rate relative to its peak. epoch: 2.5 is the middle of the third epoch."""
    if settings.rate_steps == "epoch":
        epoch = math.floor(epoch)
    warm_up = settings.warmup_epochs
    if epoch < warm_up:
        return WARM_UP_FROM + (1 - WARM_UP_FROM) * epoch / warm_up
    if settings.schedule == "constant":
        return 1.0
    progress = (epoch - warm_up) / max(settings.epochs - warm_up, 1e-9)
    if settings.schedule == "smoothed-cosine":
        progress /= SMOOTHING
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def temperature_in(settings: TrainSettings, epoch: int) -> float:
    """Return the label temperature in an epoch. epoch: counts from 0, while LPQLD's programs count from 1."""
    start, end = settings.temperature, TEMPERATURE_MINIMUM
    if settings.temperature_schedule == "step":
        falls = (epoch + 1) // TEMPERATURE_STEP_EPOCHS
        return max(start * TEMPERATURE_FACTOR**falls, end)
    if settings.temperature_schedule == "cosine":
        return end + 0.5 * (start - end) * (1 + math.cos(math.pi * (epoch + 1) / settings.epochs))
    return start


@dataclass(frozen=True, kw_only=True)
class ExperimentPreset:
    """The settings of one experiment, for `build` and for `train`."""

    label: BuildSettings
    train: TrainSettings


# Sources: docs/method.md.
EXPERIMENT_PRESETS: Mapping[str, ExperimentPreset] = {
    "imagenet1k": ExperimentPreset(
        label=BuildSettings(mix="cutmix"), train=TrainSettings(sampling="batches")
    ),
    "tiny": ExperimentPreset(
        label=BuildSettings(epochs=100, batch_size=64),
        train=TrainSettings(
            sampling="batches",
            epochs=100,
            scale_by_t2=True,
            optimizer="sgd",
            learning_rate=0.2,
            weight_decay=1e-4,
            warmup_epochs=5,
        ),
    ),
    "imagenet21k": ExperimentPreset(
        label=BuildSettings(batch_size=32, flip=False, cutout_fraction=0.5),
        train=TrainSettings(sampling="batches", learning_rate=0.002, label_smoothing=0.2),
    ),
    # The paper's "Ours+": labels by an ensemble, and G-VBSM's loss.
    "imagenet1k-plus": ExperimentPreset(
        label=BuildSettings(
            mix="cutmix",
            teachers=tuple(
                TeacherChoice(name=name)
                for name in ("resnet18", "mobilenet_v2", "efficientnet_b0", "shufflenet_v2_x0_5")
            ),
        ),
        train=TrainSettings(sampling="batches", loss="mse+gt"),
    ),
    # LPQLD: label temperature decays, student temperature is calibrated, top-k labels have no tail.
    "lpqld": ExperimentPreset(
        label=BuildSettings(mix="cutmix"),
        train=TrainSettings(
            sampling="shuffled", temperature_schedule="step", student_temperature="calibrated", tail="none"
        ),
    ),
    "hald": ExperimentPreset(
        label=BuildSettings(mix="cutmix", batch_size=16),
        train=TrainSettings(
            phases="soft:50,hard:200,soft:50", hard_smoothing=0.8, schedule="smoothed-cosine"
        ),
    ),
}


def preset_named(name: str | None) -> ExperimentPreset:
    """Return a preset. name None: imagenet1k, but with batches drawn without replacement."""
    if name is None:
        return ExperimentPreset(label=EXPERIMENT_PRESETS["imagenet1k"].label, train=TrainSettings())
    if name not in EXPERIMENT_PRESETS:
        known = ", ".join(EXPERIMENT_PRESETS)
        raise InvalidArgumentError("unknown preset", expected=f"one of {known}", got=name)
    return EXPERIMENT_PRESETS[name]
