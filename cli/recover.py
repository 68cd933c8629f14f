"""``lpld-labels recover``: synthesise a few images per class with a teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lpld_core.image_verbs import recover

from .console import says_if_stopped, show
from .options import FILE, verb_command


@verb_command("recover", recover, types={"statistics": FILE})
def command(out: Path, as_json: bool, **given: Any) -> None:
    """\b
    Examples:
      lpld-labels recover syn/in1k --teacher resnet18 --statistics in1k.safetensors --ipc 10 --device cuda
      lpld-labels recover syn/sre2l --teacher resnet18 --method sre2l --ipc 10 --device cuda
      lpld-labels recover syn/plus_c --teacher resnet18 --statistics-kind global --ipc 50
      lpld-labels recover syn/rded --teacher resnet18 --method rded --real imagenet/train --ipc 10

    \b
    On four GPUs; on machines that share a disk, one part each; on a Ray cluster:
      lpld-labels recover syn/in1k --teacher resnet18 --statistics in1k.safetensors --ipc 10 \\
          --device cuda --jobs 4
      lpld-labels recover syn/in1k --teacher resnet18 --statistics in1k.safetensors --ipc 10 \\
          --device cuda --part 1/3                                      (2/3, 3/3)
      lpld-labels recover syn/in1k --teacher resnet18 --statistics in1k.safetensors --ipc 10 \\
          --device cuda --ray 10.0.0.1:6379
    """
    with says_if_stopped(out):
        result = recover(out, **given)
    facts = {"images": str(out), "method": given["method"], **result.as_json()}
    show("Recovered images", facts, as_json=as_json)
