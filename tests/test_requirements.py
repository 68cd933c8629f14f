"""What the tests demand: nothing by default, and with LPLD_REQUIRE what ought to be there."""

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


@pytest.mark.parametrize(
    ("variables", "beside", "outcome"),
    [
        ({"CI": "true"}, False, "1 passed, 2 skipped"),
        ({"LPLD_REQUIRE": "1"}, True, "1 failed, 1 passed, 1 error"),
        # Without a folder for data beside the clone, there is none to be whole.
        ({"LPLD_REQUIRE": "1"}, False, "1 failed, 1 passed, 1 skipped"),
    ],
)
def test_what_is_required_may_not_be_skipped(
    tmp_path: Path, project: Path, variables: dict[str, str], beside: bool, outcome: str
) -> None:
    if beside:
        (tmp_path / "beside").mkdir()
    (tmp_path / "test_needs.py").write_text(NEEDS.format(same="LPLD_REQUIRE" in variables))
    ours = {"LPLD_CHROMIUM": "no-such-browser", "LPLD_SHARED_DATA": str(tmp_path / "beside" / "data")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LPLD_", "CI"))}
    options = ["-q", "-n", "0", "-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_needs.py")],
        cwd=project,
        env={**kept, **ours, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in ended.stdout.splitlines()[-1]
