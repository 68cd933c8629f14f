"""``lpld-labels import``: turn label folders of other programs into pools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lpld_labels.verbs import ImportCall, import_labels

from .console import says_if_finished, show
from .options import FOLDER, call_options, given_only, json_option, out_argument
from .progress import CommandProgress


@click.command("import")
@click.argument("source", type=FOLDER)
@out_argument
@call_options(ImportCall)
@json_option
def command(source: Path, out: str, as_json: bool, **given: Any) -> None:
    """Turn the label folder SOURCE of another program into a pool OUT.

    Files are read as data: nothing in them is executed, and torch is not needed. Labels are imported bit for
    bit; crops become the pixels the program used. The report lists what was found, what was assumed, and
    warnings; `verify --teacher` checks the assumptions.

    Run the same command again to resume after an interruption, or once a damaged file is repaired. Some files
    of finished batches are read again; if their labels differ, the import fails (--overwrite starts over).

    \b
    Formats:
      sre2l    epoch_E/batch_B.tar, no image ids (SRe2L, CDA, CV-DD, FADRM)
      lpld     the same with sampler_indices_epoch.json
      lpqld    batch_N.tar with sampler_indices_batch.json, top-k labels
      gvbsm    epoch_E/batch_B.tar with image ids in each batch, several teachers
      fkd      [[NAME/]train/]CLASS/IMAGE.tar, many crops of each image

    \b
    Examples:
      lpld-labels import FKD_cutmix_fp16 pool --images syn_data -j 8
      lpld-labels import old_labels pool --images syn_data --format sre2l --torch-era old
      lpld-labels import lpqld pool --images syn_data --classes 1000 --json > report.json
      lpld-labels import gvbsm pool --images syn --mean .5,.5,.5 --std .2,.2,.2 --ensemble average
      lpld-labels verify pool --images syn_data --teacher resnet18
    """
    with says_if_finished(out):
        result = import_labels(source, out, progress=CommandProgress(), **given_only(given))
    facts = result.as_json()
    if not as_json:
        facts |= {"source": str(source), "pool": out}
    show(f"Imported {source}", facts, as_json=as_json)
