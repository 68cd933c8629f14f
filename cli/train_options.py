"""The options of `train` that are fields of `TrainSettings`, by the same names: one place to add one.

An option that is not given leaves what the preset says.
"""

from __future__ import annotations

from typing import Any, get_args

import click

from lpld_core.train import settings as choices

from .common_options import together
from .parameters import NUMBER, SEED, TEXT
from .teacher_options import image_cache_option, machine_options, normalisation_options


def student_temperature(ctx: click.Context, param: click.Parameter, value: str | None) -> float | str | None:
    """Parse ``teacher``, ``calibrated`` or a number; the settings check its range."""
    del ctx, param
    words = get_args(choices.StudentTemperature)
    if value is None or value in words:
        return value
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"expected {', '.join(words)} or a number, got '{value}'") from None


def _choice(of: Any) -> click.Choice[str]:
    return click.Choice(get_args(of))


STUDENT_OPTIONS = (
    click.option(
        "--student", type=TEXT, metavar="NAME", help="Network name, as for --teacher [default: ResNet-18]."
    ),
    click.option("--seed", type=SEED, help="[default: 0]"),
    click.option("--epochs", type=click.IntRange(1), help="Step budget, in passes over the images."),
    click.option(
        "--policy",
        type=_choice(choices.SamplingPolicy),
        help="How label batches are drawn: 'shuffled' shows all before any comes again, 'batches' draws with "
        "replacement, as the paper and its presets do.",
    ),
    click.option(
        "--epoch-steps",
        type=_choice(choices.EpochSteps),
        help="images / batch size, rounded up, or as stored: down where all batches are complete.",
    ),
    click.option(
        "-b",
        "--batch-size",
        type=click.IntRange(1),
        help="Rows of a step [default: the pool's label batches].",
    ),
    normalisation_options("where the pool does not know it"),
)
LOSS_OPTIONS = (
    click.option("--loss", type=_choice(choices.Loss), help="kl, or squared error of logits + ground truth."),
    click.option("--gamma", type=NUMBER, help="Weight of the ground truth in mse+gt."),
    click.option(
        "--ground-truth", type=_choice(choices.GroundTruth), help="Class of the view's own image, or of both."
    ),
    click.option("--temperature", type=NUMBER, help="Of the label in the kl loss, at first."),
    click.option(
        "--temperature-schedule",
        type=_choice(choices.TemperatureSchedule),
        help="How it falls: times a factor every so many epochs, or along a cosine, to a minimum.",
    ),
    click.option("--temperature-step-epochs", type=click.IntRange(1), help="Epochs between falls (30)."),
    click.option("--temperature-factor", type=NUMBER, help="What it is multiplied by (0.7)."),
    click.option("--temperature-minimum", type=NUMBER, help="Where it stops (2)."),
    click.option(
        "--student-temperature",
        callback=student_temperature,
        metavar="teacher|calibrated|NUMBER",
        help="Of the student's output: the teacher's, or the best of the last epoch's last batch.",
    ),
    click.option(
        "--t2/--no-t2", "scale_by_t2", default=None, help="Multiply the kl loss by the temperature squared."
    ),
    click.option("--tail", type=_choice(choices.Tail), help="What classes left out by top-k labels get."),
    click.option("--label-smoothing", type=NUMBER, help="Share taken from the label."),
    click.option(
        "--smoothing-on",
        type=_choice(choices.SmoothingOn),
        help="Shrink logits by it, or spread it evenly over the classes.",
    ),
)
OPTIMIZER_OPTIONS = (
    click.option("--optimizer", type=_choice(choices.Optimizer)),
    click.option("--lr", "learning_rate", type=NUMBER, help="Learning rate at its highest."),
    click.option("--weight-decay", type=NUMBER),
    click.option(
        "--decay-on", type=_choice(choices.DecayOn), help="All, or not biases and normalisation layers."
    ),
    click.option("--momentum", type=NUMBER, help="Of SGD."),
    click.option("--schedule", type=_choice(choices.Schedule), help="How the learning rate falls."),
    click.option("--rate-steps", type=_choice(choices.RateSteps), help="Once an epoch or with every step."),
    click.option("--warmup-epochs", type=NUMBER, help="Epochs in which it rises linearly."),
    click.option("--warmup-from", type=NUMBER, help="Share of the rate to begin with."),
    click.option("--ema", type=NUMBER, metavar="DECAY", help="Average the weights, e.g. 0.99."),
)
RUN_OPTIONS = (
    click.option("--evaluate-every", type=click.IntRange(1), help="In epochs [default: 10]."),
    click.option("--save-every", type=click.IntRange(1), help="In epochs [default: 1]."),
    machine_options,
    click.option(
        "--accumulate",
        type=click.IntRange(1),
        help="Compute a step in so many passes over parts of its rows, for large batches [default: 1].",
    ),
    click.option(
        "--sync-batchnorm/--no-sync-batchnorm",
        default=None,
        help="BatchNorm over the rows of all processes, as one process would compute it.",
    ),
    image_cache_option,
    click.option(
        "-j",
        "--workers",
        type=click.IntRange(0),
        help="Processes that prepare batches ahead [default: 0 on a CPU, which training keeps busy itself].",
    ),
)


settings_options = together(*STUDENT_OPTIONS, *LOSS_OPTIONS, *OPTIMIZER_OPTIONS, *RUN_OPTIONS)
"""An option for every field of `TrainSettings`, and --threads."""
