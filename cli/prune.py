"""``lpld-labels prune``: write a smaller pool with some of the label batches."""

from __future__ import annotations

from typing import Any

from lpld_labels.verbs import prune

from .console import says_if_finished, show
from .options import POOL_BUDGET, verb_command


@verb_command("prune", prune, types={"budget": POOL_BUDGET})
def command(pool: str, out: str, as_json: bool, **given: Any) -> None:
    """\b
    Examples:
      lpld-labels prune pool pool_40x --ratio 40
      lpld-labels prune pool small --budget 300MB --dry-run
      lpld-labels prune pool hard --ratio 40 --by confidence --prefer hard
    """
    with says_if_finished(None if given["dry_run"] else out):
        result = prune(pool, out, **given)
    show(f"Prune {result.pool}", result.as_json(), as_json=as_json)
