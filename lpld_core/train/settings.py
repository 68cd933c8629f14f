"""Settings of a training run, and the schedules that follow from them.

Nothing here needs torch, so the command line can list choices without loading it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.limits import MAX_SEED

Loss = Literal["kl", "mse+gt"]
Optimizer = Literal["adamw", "sgd"]
Schedule = Literal["cosine", "smoothed-cosine", "constant"]
RateSteps = Literal["epoch", "step"]
DecayOn = Literal["weights", "all"]
GroundTruth = Literal["own", "mixed"]
SmoothingOn = Literal["logits", "probabilities"]
TemperatureSchedule = Literal["constant", "step", "cosine"]
StudentTemperature = Literal["teacher", "calibrated"]
Tail = Literal["stored", "none"]
EpochSteps = Literal["stored", "ceil"]
SamplingPolicy = Literal["batches", "epochs", "epoch-by-epoch", "shuffled", "stored"]

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "loss": get_args(Loss),
    "optimizer": get_args(Optimizer),
    "schedule": get_args(Schedule),
    "rate_steps": get_args(RateSteps),
    "decay_on": get_args(DecayOn),
    "ground_truth": get_args(GroundTruth),
    "smoothing_on": get_args(SmoothingOn),
    "temperature_schedule": get_args(TemperatureSchedule),
    "tail": get_args(Tail),
    "epoch_steps": get_args(EpochSteps),
    "policy": get_args(SamplingPolicy),
}
_ABOVE_0 = (
    "epochs",
    "batch_size",
    "temperature",
    "temperature_step_epochs",
    "temperature_factor",
    "temperature_minimum",
    "learning_rate",
    "evaluate_every",
    "save_every",
    "accumulate",
)
_FROM_0 = ("seed", "gamma", "weight_decay", "warmup_epochs", "workers")
_BELOW_1 = ("label_smoothing", "momentum", "ema")
_RANGES: tuple[tuple[tuple[str, ...], str, Callable[[float], bool]], ...] = (
    (_ABOVE_0, "a number > 0", lambda x: 0 < x < math.inf),
    (_FROM_0, "a number >= 0", lambda x: 0 <= x < math.inf),
    (_BELOW_1, "a number from 0, below 1", lambda x: 0 <= x < 1),
    (("warmup_from",), "a number from 0 to 1", lambda x: 0 <= x <= 1),
)
_DECIDES_NOTHING = (
    "evaluate_every",
    "save_every",
    "device",
    "workers",
    "image_cache",
    # How a step's rows are shared out, like the number of processes; with BatchNorm it shows in the result.
    "accumulate",
    "sync_batchnorm",
)


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How a student is trained from a pool. The defaults are the paper's for ImageNet-1K.

    student: a network name; None chooses ResNet-18, in its small-image form for views below 128 px.
    epochs: step budget, in passes over the images.
    batch_size: rows of a step, of all processes together; None for the pool's own. Label batches are cut and
        joined to it.
    policy: of drawing label batches, see lpld_labels.loader.sampling.
    epoch_steps: steps of an epoch. "stored" rounds images / batch size down where the pool holds complete
        batches only, as pruned pools do, and up where it holds others; "ceil" always rounds up.
    mean, std: of the pixels; None takes the teachers' where the pool knows them and they agree.

    loss: KL to the softened label, or squared error to the logits plus `gamma` times the cross-entropy of
        the true class: of a view's "own" image, or of both "mixed" images by their weights.
    temperature: of the label in the KL loss. Its schedule, by epochs e counted from 1: "step" multiplies it
        by temperature_factor every temperature_step_epochs and stops at temperature_minimum; "cosine"
        goes there along half a cosine.
    student_temperature: of the student's output: the "teacher"'s, a number, or "calibrated": 1 at first
        and, after each epoch, the value from .01 to 1 with the lowest loss on the epoch's last batch.
    scale_by_t2: multiply the KL loss by the label's temperature squared.
    tail: what classes left out by top-k labels get: the level that is "stored", or "none" of the mass.
    label_smoothing: a share s. On "probabilities" it is spread evenly over all classes; on "logits" they
        become (1 - s) z + s / C, which is the label at temperature T / (1 - s).

    learning_rate, weight_decay, momentum (SGD): as PyTorch defines them.
    decay_on: weights only, sparing biases and normalisation (tensors of one dimension), or all.
    warmup_epochs, warmup_from: the rate rises linearly from warmup_from x learning_rate.
    rate_steps: whether the rate changes once an epoch or with every step.
    ema: decay of a moving average of the weights, which is then what is evaluated and saved; None for none.

    evaluate_every, save_every: in epochs; the last epoch always does both. device: of torch.
    amp: autocast to bfloat16, which needs no loss scaling. workers: processes that prepare batches ahead.
    accumulate: compute a step's gradients in so many passes over parts of its rows, for less memory.
    sync_batchnorm: where several processes train, BatchNorm takes its statistics of all their rows.
    image_cache: directory for decoded images that processes share; None keeps them in memory.
    """

    student: str | None = None
    seed: int = 0
    epochs: int = 300
    batch_size: int | None = None
    policy: SamplingPolicy = "shuffled"
    epoch_steps: EpochSteps = "stored"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    loss: Loss = "kl"
    gamma: float = 0.1
    ground_truth: GroundTruth = "own"
    temperature: float = 20.0
    temperature_schedule: TemperatureSchedule = "constant"
    temperature_step_epochs: int = 30
    temperature_factor: float = 0.7
    temperature_minimum: float = 2.0
    student_temperature: float | StudentTemperature = "teacher"
    scale_by_t2: bool = False
    tail: Tail = "stored"
    label_smoothing: float = 0.0
    smoothing_on: SmoothingOn = "logits"

    optimizer: Optimizer = "adamw"
    learning_rate: float = 0.001
    weight_decay: float = 0.01
    decay_on: DecayOn = "weights"
    momentum: float = 0.9
    schedule: Schedule = "cosine"
    rate_steps: RateSteps = "epoch"
    warmup_epochs: float = 0.0
    warmup_from: float = 0.01
    ema: float | None = None

    evaluate_every: int = 10
    save_every: int = 1
    device: str = "cpu"
    amp: bool = False
    workers: int = 0
    accumulate: int = 1
    sync_batchnorm: bool = False
    image_cache: Path | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise self._wrong(name, f"one of {', '.join(choices)}")
        for names, expected, sound in _RANGES:
            for name in names:
                if getattr(self, name) is not None and not sound(getattr(self, name)):
                    raise self._wrong(name, expected)
        if self.seed > MAX_SEED:
            raise self._wrong("seed", f"0 to {MAX_SEED}")
        of_student = self.student_temperature
        named = of_student in get_args(StudentTemperature)
        if not named and (isinstance(of_student, str) or not 0 < of_student < math.inf):
            raise self._wrong("student_temperature", "a number > 0, 'teacher' or 'calibrated'")

    def _wrong(self, name: str, expected: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{name.replace('_', ' ')} is wrong", expected=expected, got=getattr(self, name)
        )

    def deciding(self) -> dict[str, Any]:
        """Return the fields that decide a run's outcome."""
        return {name: value for name, value in asdict(self).items() if name not in _DECIDES_NOTHING}


SMOOTHING = 2.0
"""How much slower the smoothed cosine falls: after the whole budget it has come half way (RDED)."""


def rate_factor(settings: TrainSettings, epoch: float) -> float:
    """Return what to multiply the learning rate by.

    epoch: passes over the images so far, with fractions: 2.5 is half way through the third.
    """
    if settings.rate_steps == "epoch":
        epoch = math.floor(epoch)
    warm_up = settings.warmup_epochs
    if epoch < warm_up:
        return settings.warmup_from + (1 - settings.warmup_from) * epoch / warm_up
    if settings.schedule == "constant":
        return 1.0
    progress = (epoch - warm_up) / max(settings.epochs - warm_up, 1e-9)
    if settings.schedule == "smoothed-cosine":
        progress /= SMOOTHING
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def temperature_in(settings: TrainSettings, epoch: int) -> float:
    """Return the temperature of the labels in an epoch, counted from 0.

    LPQLD's programs count epochs from 1 here: the first fall comes one epoch early, and the cosine is at
    its minimum in the last epoch, not after it.
    """
    start, end = settings.temperature, settings.temperature_minimum
    if settings.temperature_schedule == "step":
        falls = (epoch + 1) // settings.temperature_step_epochs
        return max(start * settings.temperature_factor**falls, end)
    if settings.temperature_schedule == "cosine":
        return end + 0.5 * (start - end) * (1 + math.cos(math.pi * (epoch + 1) / settings.epochs))
    return start
