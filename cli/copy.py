"""``lpld-labels copy``: copy pools between places, merge them, add or extract their images."""

from __future__ import annotations

import time
from typing import Any

from lpld_labels.io.addresses import redact
from lpld_labels.verbs import copy

from .console import says_if_finished, show
from .options import verb_command


@verb_command("copy", copy)
def command(pools: tuple[str, ...], out: str, as_json: bool, **given: Any) -> None:
    """\b
    Examples:
      lpld-labels copy pools/in1k s3://bucket/pools/in1k
      lpld-labels copy https://example.org/pools/in1k pools/in1k
      lpld-labels copy share_1 share_2 share_3 whole
      lpld-labels copy pools/in1k_40x pools/in1k_40x_packed --images syn/in1k_ipc10
      lpld-labels copy pools/in1k_40x_packed syn/in1k_ipc10 --unpack
    """
    began = time.monotonic()
    with says_if_finished(out, pool=not given["unpack"]):
        result = copy(pools, out, **given)
    facts = result.as_json()
    if not given["unpack"]:
        places = {"pools": [redact(pool) for pool in pools], "out": redact(out)}
        facts = places | facts | {"seconds": round(time.monotonic() - began, 3)}
    show("Copy", facts, as_json=as_json)
