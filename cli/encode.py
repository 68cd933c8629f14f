"""``lpld-labels encode``: the same pool in another codec."""

from __future__ import annotations

from typing import Any

import click

from lpld_labels.verbs import EncodeCall, encode

from .console import note, says_if_finished, show, times_smaller
from .options import call_options, given_only, json_option, out_argument, pool_argument
from .progress import CommandProgress


@click.command("encode")
@pool_argument
@out_argument
@call_options(EncodeCall)
@json_option
def command(pool: str, out: str, as_json: bool, **given: Any) -> None:
    """Write POOL to OUT with labels in another codec, or with views stored differently.

    With --views alone, labels are copied unchanged. Views that `build` drew need not be stored: readers
    draw the same ones again. Run the same command again to resume an interrupted one.

    "Kept" is the share of the labels' information that survives at a temperature T, 1 - KL(p||q) /
    KL(p||uniform), measured on rows the codec was not fitted to.

    \b
    Codecs: bytes per row, kept at T = 1 and at T = 20 on ImageNet-1K logits (fp16: 2000 bytes)
      f16      1697   1     1      lossless, the default of every other command
      int8     1008   1     1      256 levels per row, scaled to the row; int6: 64, int4: 16
      klt       157   .991  .960   principal directions, quantised and entropy coded; argmax kept
      topk:50   109   .959  .410   the 50 largest labels of a row and the mass of the rest

    f16, int8 and klt serve training at every temperature, also a changing one; topk only at low ones.

    \b
    Examples:
      lpld-labels encode pool small --codec klt
      lpld-labels encode pool small --codec klt --fidelity 0.99 --temperature 1
      lpld-labels encode pool small --codec klt --jobs 4
      lpld-labels encode pool half --codec int8 --ray 10.0.0.1:6379
      lpld-labels encode pool small --codec klt --views drawn
      lpld-labels encode small again --views stored
    """
    with says_if_finished(out):
        result = encode(pool, out, progress=CommandProgress(), **given_only(given))
    show(f"Encode {pool}", result.as_json(), as_json=as_json)
    if result.fidelity is not None and result.bytes["after"] > result.bytes["before"]:
        smaller = times_smaller(result.bytes["before"] / result.bytes["after"])
        note(f"note: the new pool is larger than the old one ({smaller})")
