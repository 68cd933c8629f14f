"""The site builds strictly, needs no network to be read, and its reference is complete."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from lpld_cli.main import LAZY_COMMANDS

import lpld_labels
import lpld_labels.loader
from tests.docs.documents import PROJECT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
        cwd=PROJECT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return out


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=[\"']?((?:https?:)?//[^\"'>\s]+)")
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 15
    assert {page.name: found for page in pages if (found := loaded.findall(page.read_text()))} == {}
    styles = [path for path in site.rglob("*.css") if re.search(r"url\([\"']?https?:", path.read_text())]
    assert styles == []


def test_the_command_line_is_all_there(site: Path) -> None:
    page = (site / "reference" / "cli.html").read_text()
    for name in LAZY_COMMANDS:
        assert f'<h2 id="{name}">' in page
    assert "<code>--ratio FLOAT" in page
    assert "\b" not in page


def test_the_python_api_is_all_there(site: Path) -> None:
    page = (site / "reference" / "python.html").read_text()
    public = {*lpld_labels.__all__, *lpld_labels.loader.__all__} - {"__version__"}
    assert [name for name in sorted(public) if f'.{name}"' not in page] == []
    assert "PruneCall" not in page
    assert "Keep floor(n / RATIO)" in page


def test_pictures_are_what_their_script_draws() -> None:
    drawn = runpy.run_path(str(PROJECT / "docs" / "tools" / "pictures.py"))["PICTURES"]
    for name, draw in drawn.items():
        assert (PROJECT / "docs" / "images" / name).read_text() == draw()
