"""What the tests demand: nothing by default, and with LPLD_REQUIRE what ought to be there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NEEDS = """
from hypothesis import settings
from tests.browser import find_chromium

def test_data(shared_data): pass
def test_browser(): find_chromium()
def test_examples(): assert settings.default.derandomize == {same}
"""


def outcome(folder: Path, project: Path, *, same: bool = False, **variables: str) -> dict[str, int]:
    """Run three tests that need something, with these variables and no others of ours."""
    (folder / "test_needs.py").write_text(NEEDS.format(same=same))
    kept = {
        name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("LPLD_")
    }
    kept["LPLD_CHROMIUM"] = "no-such-browser"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
    ]
    ended = subprocess.run(
        [*command, "--rootdir", str(folder), str(folder / "test_needs.py")],
        cwd=project,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    counts = dict.fromkeys(("passed", "skipped", "failed", "error"), 0)
    for part in ended.stdout.splitlines()[-1].split(","):
        count, _, what = part.strip().partition(" ")
        counts[what.split(" ")[0].rstrip("s") if what.startswith("error") else what.split(" ")[0]] = int(
            count
        )
    return counts


def test_ci_alone_changes_nothing(tmp_path: Path, project: Path) -> None:
    bare = outcome(tmp_path, project, LPLD_SHARED_DATA=str(tmp_path / "beside" / "data"))
    assert bare == {"passed": 1, "skipped": 2, "failed": 0, "error": 0}
    assert outcome(tmp_path, project, LPLD_SHARED_DATA=str(tmp_path / "beside" / "data"), CI="true") == bare


@pytest.mark.parametrize("beside", [True, False])
def test_what_is_required_may_not_be_skipped(tmp_path: Path, project: Path, beside: bool) -> None:
    if beside:
        (tmp_path / "beside").mkdir()
    data = str(tmp_path / "beside" / "data")
    found = outcome(tmp_path, project, same=True, LPLD_SHARED_DATA=data, LPLD_REQUIRE="1")
    assert found == {"passed": 1, "skipped": 0 if beside else 1, "failed": 1, "error": 1 if beside else 0}
