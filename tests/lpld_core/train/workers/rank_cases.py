"""One of several processes that train all cases together: rank_cases.py PLACE."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from lpld_core.train.ranks import joined_ranks, leave
from tests.lpld_core.train.rank_cases import CASES, recorded_rows, train


def main() -> None:
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    rows = {}
    with joined_ranks("cpu") as ranks:
        for name in CASES:
            with recorded_rows() as rows[name]:
                train(place, name, place / "ranks" / name, ranks)
        (place / f"rank{ranks.rank}.json").write_text(json.dumps(rows))
    leave(0)


if __name__ == "__main__":
    main()
