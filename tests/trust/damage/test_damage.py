"""A small part of the damage campaign; `make damage` runs all of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_damage_is_refused_or_does_no_harm(project: Path) -> None:
    # In a process of its own: children are forked from it, and their memory counts what it holds.
    command = [sys.executable, "-m", "tests.damage.campaign", "400"]
    found = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    counted = re.fullmatch(r"400 cases: (\d+) refused, (\d+) right\n", found.stdout)
    assert counted is not None, found.stdout
    # What does no harm hit bytes that nobody reads: footers and keys of labels files.
    assert int(counted[1]) > 300
