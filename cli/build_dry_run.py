"""``build --dry-run``: what the build would cost."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpld_labels.inspect.text import human_bytes

from .console import print_json, stdout_console
from .progress import human_seconds, progress_bar
from .tables import facts_table

if TYPE_CHECKING:
    from lpld_core.relabel.dry_run import DryRun
    from lpld_core.relabel.settings import BuildSettings


def show_dry_run(
    images: Path, out: str, settings: BuildSettings, *, workers: int, device: str | None, as_json: bool
) -> None:
    """Try one batch and print what all of them will cost; write nothing.

    workers: who would label. device: of the trial, if not the settings'.
    """
    from lpld_core.relabel.build import Build
    from lpld_core.relabel.dry_run import dry_run
    from lpld_labels.transforms.destinations import gathered_at

    with progress_bar("reading images") as progress:
        build = Build.prepare(images, gathered_at(out), settings, device=device, image_progress=progress)
    found = dry_run(build)
    if as_json:
        print_json(_facts(images, out, found, workers))
        return
    cost = found.cost
    rate = found.trial_views / found.trial_seconds
    rows = {
        "batches": f"{cost.batches:,}",
        "views": f"{cost.views:,}",
        "teacher forwards": f"{cost.forwards:,} images",
        "staged": human_bytes(cost.staged_bytes),
        "pool": human_bytes(cost.final_bytes),
        "time": f"{human_seconds(found.seconds / workers)} with {workers} worker{'s' if workers > 1 else ''} "
        f"of {rate:.3g} views/s (one batch of {found.trial_views} tried)",
    }
    stdout_console().print(facts_table(f"Dry run: {images} -> {out}, nothing written", rows.items()))


def _facts(images: Path, out: str, found: DryRun, workers: int) -> dict[str, Any]:
    return {
        "images": str(images),
        "pool": out,
        **asdict(found.cost),
        "workers": workers,
        "trial_views": found.trial_views,
        "trial_seconds": round(found.trial_seconds, 4),
        "seconds": round(found.seconds / workers, 1),
    }
