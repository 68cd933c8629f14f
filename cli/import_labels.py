"""``lpld-labels import``: turn label folders of other programs into pools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lpld_labels.verbs import import_labels

from .console import says_if_finished, show
from .options import verb_command


@verb_command("import", import_labels)
def command(source: Path, out: str, as_json: bool, **given: Any) -> None:
    """\b
    Examples:
      lpld-labels import FKD_cutmix_fp16 pool --images syn_data -j 8
      lpld-labels import old_labels pool --images syn_data --format sre2l --torch-era old
      lpld-labels import lpqld pool --images syn_data --classes 1000 --json > report.json
      lpld-labels import gvbsm pool --images syn --mean .5,.5,.5 --std .2,.2,.2 --ensemble average
      lpld-labels verify pool --images syn_data --teacher resnet18
    """
    with says_if_finished(out):
        result = import_labels(source, out, **given)
    facts = result.as_json()
    if not as_json:
        facts |= {"source": str(source), "pool": out}
    show(f"Imported {source}", facts, as_json=as_json)
