"""``lpld-labels squeeze``: per-class BatchNorm statistics of a teacher on its training data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lpld_core.image_verbs import SqueezeCall, squeeze

from .console import says_if_stopped, show
from .options import FILE, FOLDER, call_options, given_only, json_option
from .progress import CommandProgress


@click.command("squeeze")
@click.argument("data", type=FOLDER)
@click.argument("out", type=FILE)
@call_options(SqueezeCall)
@json_option
def command(data: Path, out: Path, as_json: bool, **given: Any) -> None:
    """Compute per-class BatchNorm statistics of a teacher on DATA and save them as OUT.

    DATA is an image folder with one directory per class; OUT a safetensors file. Every pass covers all
    classes. A moving average needs several passes; the output states the paper's bound. Exact moments need
    one, and are bit-identical for any number of workers (at equal --threads).

    Run the same command again after a crash or Ctrl-C to resume. Classes whose images changed in path, size
    or date start over. An OUT from other settings or images is only replaced with --overwrite.

    \b
    Examples:
      lpld-labels squeeze imagenet/train in1k.safetensors --teacher resnet18 --device cuda
      lpld-labels squeeze imagenet/train in1k.safetensors --teacher resnet18 --views crop --update ema
      lpld-labels squeeze small/train stats.safetensors --train-teacher --size 32 \\
          --teacher small-resnet10:width=32,stem_stride=2 --teacher-weights teacher.safetensors
    """
    with says_if_stopped(out):
        result = squeeze(data, out, progress=CommandProgress(), **given_only(given))
    show(f"Statistics of {data}", result.as_json(), as_json=as_json)
