"""``lpld-labels recover``: synthesise a few images per class with a teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lpld_core.image_verbs import RecoverCall, recover

from .console import says_if_stopped, show
from .options import FILE, call_options, given_only, json_option
from .progress import CommandProgress


@click.command("recover")
@click.argument("out", type=FILE)
@call_options(RecoverCall, types={"statistics": FILE})
@json_option
def command(out: Path, as_json: bool, **given: Any) -> None:
    """Synthesise images from a teacher and save them as the image folder OUT.

    \b
    lpld   optimise the images of one class together towards its class statistics
    sre2l  optimise images of many classes together towards the global statistics
    cda    like sre2l, with crops that shrink from the full image
    rded   no optimisation: stitch 2 x 2 crops of real images on which the teacher is most confident

    Run the same command again after a crash or Ctrl-C to resume. OUT also gets recover.json with all settings
    and contact_sheet.png, an overview of the images. rded only resumes with the same real images or copies.

    \b
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
        result = recover(out, progress=CommandProgress(), **given_only(given))
    show("Recovered images", result.as_json(), as_json=as_json)
