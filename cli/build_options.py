"""The options of `build` that are fields of `BuildSettings`, by the same names: one place to add one.

An option that is not given leaves what the preset says.
"""

from __future__ import annotations

from typing import get_args

import click

from lpld_core.relabel.settings import Replayer
from lpld_core.settings import Mix, Resize
from lpld_labels.format.schema import Views
from lpld_labels.pool.pace import SAVE_SECONDS

from .common_options import seed_option, together
from .parameters import NUMBER, PART, TEXT, NumberRange
from .teacher_options import image_cache_option, machine_options

VIEW_OPTIONS = (
    click.option("--epochs", type=click.IntRange(1), help="Views of every image, before pruning."),
    click.option(
        "-b", "--batch-size", type=click.IntRange(1), help="Views labelled, mixed and stored together."
    ),
    click.option(
        "--ratio",
        type=NumberRange(1),
        default=1.0,
        show_default=True,
        help="Label only the 1/RATIO of the batches that random pruning would keep.",
    ),
    seed_option("All views and their pruning follow from it."),
    click.option(
        "--crop-scale", type=NUMBER, nargs=2, metavar="LOW HIGH", help="Area share of random crops."
    ),
    click.option("--flip/--no-flip", default=None, help="Mirror every other view."),
    click.option("--mix", type=click.Choice(get_args(Mix)), help="Blend views with others of their batch."),
    click.option(
        "--cutout",
        "cutout_fraction",
        type=NUMBER,
        metavar="SHARE",
        help="Paint over a box with this share of the side.",
    ),
    click.option(
        "--patches",
        "patch_grid",
        type=click.IntRange(1, 15),
        metavar="N",
        help="Shuffle N x N patches (RDED).",
    ),
    click.option("--resize", type=click.Choice(get_args(Resize)), help="Resize code [default: torch]."),
    click.option(
        "--replayable-by",
        type=click.Choice(get_args(Replayer)),
        help="Take images in the order that program's trainer draws, and resize with Pillow as it does: "
        "it then replays the exported pool exactly.",
    ),
)
POOL_OPTIONS = (
    click.option(
        "--codec",
        type=TEXT,
        default="f16",
        show_default=True,
        help="How labels are stored: f16, f16:plain, f32, int8, topk:50 ... (for klt, encode the pool).",
    ),
    click.option(
        "--views",
        type=click.Choice(get_args(Views)),
        default="stored",
        show_default=True,
        help="Keep the views in files, or let readers draw them again from the seed: smaller.",
    ),
    click.option("--pack", is_flag=True, help="Put the images into the pool too: see lpld-labels pack."),
    click.option(
        "--fewer-classes",
        is_flag=True,
        help="The folder may have fewer classes than the teacher; class numbers are the folder's.",
    ),
)
RUN_OPTIONS = (
    machine_options,
    image_cache_option,
    click.option(
        "--workers", type=click.IntRange(1), help="Threads that prepare pixels [default: 1 on a CPU]."
    ),
    click.option(
        "--part",
        type=PART,
        help="Label one share and do not publish; see the examples.",
    ),
    click.option(
        "--seal-seconds",
        type=NumberRange(0),
        default=SAVE_SECONDS,
        show_default=True,
        help="How often finished work is made safe against a crash.",
    ),
)

settings_options = together(*VIEW_OPTIONS, *POOL_OPTIONS, *RUN_OPTIONS)
"""An option for every field of `BuildSettings` but its teachers, which `teacher_options` name."""
