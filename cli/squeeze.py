"""``lpld-labels squeeze``: per-class BatchNorm statistics of a teacher on its training data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lpld_core.image_verbs import squeeze

from .console import note, says_if_stopped, show
from .options import verb_command


@verb_command("squeeze", squeeze)
def command(data: Path, out: Path, as_json: bool, **given: Any) -> None:
    """\b
    Examples:
      lpld-labels squeeze imagenet/train in1k.safetensors --teacher resnet18 --device cuda
      lpld-labels squeeze imagenet/train in1k.safetensors --teacher resnet18 --views crop --update ema
      lpld-labels squeeze small/train stats.safetensors --train-teacher --size 32 \\
          --teacher small-resnet10:width=32,stem_stride=2 --teacher-weights teacher.safetensors
    """
    with says_if_stopped(out):
        result = squeeze(data, out, **given)
    if given["train_teacher"]:
        note(f"teacher saved as {given['weights']}")
    show(f"Statistics of {data}", result.as_json(), as_json=as_json)
