"""The command line starts at once and never drags torch in."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lpld_labels.render.images import find_images
from lpld_labels.transforms.copy import merge_pools
from tests.factories import make_batches, write_pool
from tests.lpld_labels.loader.loader_pools import build, write_images

SCRIPT = Path(sys.executable).with_name("lpld-labels")


@pytest.mark.timing
def test_help_starts_in_under_300_ms() -> None:
    assert SCRIPT.exists()
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        subprocess.run([SCRIPT, "--help"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    # The fastest of a few: a busy machine can only make a start slower.
    assert min(seconds) < 0.3, statistics.median(seconds)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a pool that carries its images, which lie beside it too."""
    root = tmp_path_factory.mktemp("packed")
    with build(root / "bare", write_images(root / "images", 12)) as bare:
        merge_pools([bare], root / "pool", images=find_images(bare, root / "images"))
    return root / "pool"


@pytest.mark.parametrize(
    "words",
    [
        ["inspect"],
        ["inspect", "--json"],
        ["verify"],
        ["prune", "OUT", "--ratio", "3"],
        ["report", "POOL"],
        ["copy", "OUT", "--images", "IMAGES"],
        ["copy", "OUT", "--unpack"],
        ["inspect", "--recipe"],
        ["inspect", "--card", "-"],
    ],
)
def test_commands_that_need_no_torch_do_not_import_it(packed: Path, tmp_path: Path, words: list[str]) -> None:
    places = {"OUT": tmp_path / "OUT", "POOL": packed, "IMAGES": packed.with_name("images")}
    arguments = [words[0], str(packed), *(str(places.get(word, word)) for word in words[1:])]
    code = f"""
import sys
sys.argv = ["lpld-labels", *{arguments!r}]
from importlib.metadata import entry_points
(script,) = entry_points(group="console_scripts", name="lpld-labels")
try:
    script.load()()
finally:
    heavy = sorted(set(sys.modules) & {{"torch", "torchvision"}})
    if heavy:
        raise RuntimeError(heavy)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_the_console_script_is_the_installed_one() -> None:
    found = shutil.which("lpld-labels", path=str(SCRIPT.parent))
    assert found is not None
    ended = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("lpld-labels ")


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", make_batches()).close()
    command = f"{SCRIPT} inspect {tmp_path / 'pool'} --json | head -1"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)  # noqa: S602
    assert ended.stdout == "{\n"
    assert "Traceback" not in ended.stderr
