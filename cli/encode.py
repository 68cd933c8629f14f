"""``lpld-labels encode``: write a pool again in another codec."""

from __future__ import annotations

from typing import Any

from lpld_labels.verbs import encode

from .console import note, says_if_finished, show, times_smaller
from .options import verb_command


@verb_command("encode", encode)
def command(pool: str, out: str, as_json: bool, **given: Any) -> None:
    """\b
    Examples:
      lpld-labels encode pool small --codec klt
      lpld-labels encode pool small --codec klt --fidelity 0.99 --temperature 1
      lpld-labels encode pool small --codec klt --jobs 4
      lpld-labels encode pool half --codec int8 --ray 10.0.0.1:6379
      lpld-labels encode pool small --codec klt --views drawn
      lpld-labels encode small again --views stored
    """
    with says_if_finished(out):
        result = encode(pool, out, **given)
    show(f"Encode {pool}", {"pool": pool, "out": out, **result.as_json()}, as_json=as_json)
    if result.fidelity is not None and result.after > result.before:
        smaller = times_smaller(result.before / result.after)
        note(f"note: the new pool is larger than the old one ({smaller})")
