"""``lpld-labels build``: label an image folder with a teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lpld_core.verbs import build, build_defaults

from .console import says_if_finished, says_if_stopped, show
from .options import verb_command
from .progress import human_seconds


@verb_command("build", build, usual=build_defaults({}))
def command(images: Path, out: str, as_json: bool, **given: Any) -> None:
    """\b
    Examples:
      lpld-labels build syn/in1k_ipc10 pools/in1k --teacher resnet18
      lpld-labels build syn/in1k_ipc10 pools/in1k_40x --teacher resnet18 --ratio 40
      lpld-labels build syn/tiny pools/tiny --preset tiny --teacher small-resnet18 \\
          --teacher-weights tiny_resnet18.safetensors
      lpld-labels build syn/in1k_ipc10 pools/plus --preset imagenet1k-plus
      lpld-labels build syn/in1k_ipc10 pools/in1k --teacher resnet18 --device cuda --jobs 8
      lpld-labels build syn/in1k_ipc10 pools/old --teacher resnet18 --replayable-by lpld
      lpld-labels build syn/in1k_ipc10 pools/in1k --teacher resnet18 --device cuda --ray 10.0.0.1:6379
      lpld-labels build syn/in1k_ipc10 pools/whole --teacher resnet18 --ratio 40 --pack

    \b
    Cost of a run in advance (docs/clusters.md: one machine, a Slurm array, a Ray cluster):
      lpld-labels build syn/in1k_ipc10 pools/in1k --teacher resnet18 --dry-run

    \b
    On three machines that share a disk; the last one to finish publishes:
      lpld-labels build syn pools/in1k --teacher resnet18 --part 1/3     (2/3, 3/3)
    """
    with says_if_stopped(out), says_if_finished(None if given["dry_run"] else out):
        result = build(images, out, **given)
    if result.cost is not None:
        show(f"Dry run of {images}, nothing written", result.cost, as_json=as_json)
        if not as_json:
            click.echo(f"about {human_seconds(result.cost['seconds'])}")
        return
    show(f"Pool of {images}", {"pool": out, **result.as_json()}, as_json=as_json)
    if result.manifest is None and not as_json:
        click.echo("the last part publishes the pool", err=True)
