"""Write tests/golden/refuse/ anew: one pool for each case, with the reason beside its files."""

import shutil
from pathlib import Path

from tests.golden.crafting import codec_cases, manifest_cases, payload_cases, table_cases
from tests.golden.crafting.cases import CASES
from tests.golden.crafting.crafted import Crafted

GOLDEN = Path(__file__).resolve().parents[1]
MODULES = (manifest_cases, table_cases, payload_cases, codec_cases)
"""Imported for what they register."""


def main() -> None:
    """Write every case."""
    refuse = GOLDEN / "refuse"
    shutil.rmtree(refuse, ignore_errors=True)
    names = [case.name for case in CASES]
    if len(set(names)) != len(names):
        raise SystemExit(f"names occur twice: {sorted({n for n in names if names.count(n) > 1})}")
    for case in CASES:
        pool = Crafted(GOLDEN / "v1" / case.base)
        case.change(pool)
        target = refuse / case.name
        pool.save(target)
        (target / "reason.txt").write_text(f"{case.stage}\n{case.reason}\n")


if __name__ == "__main__":
    main()
