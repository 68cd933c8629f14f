"""Tables at all widths, as recorded: look at tests/cli/snapshots after a change.

LPLD_RECORD=1 python -m pytest tests/cli/test_console.py writes them anew.
"""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.cli.build_runs import Cli, passed
from tests.factories import make_batches, make_header, make_images, write_pool
from tests.label_factory import make_logits
from tests.lpld_core.image_folders import write_images as write_real_images
from tests.lpld_labels.interop.label_folders import write_epochs, write_images

SNAPSHOTS = Path(__file__).parent / "snapshots"
WIDTHS = (60, 120)
ANSI = re.compile(r"\x1b\[[0-9;]*m")
# What depends a little on the versions of libraries: sizes of files (in a table, bytes per row stand beside
# them), and what is computed from labels.
MEASURED = re.compile(r"\d+\.\d+|\d+(?= k?B)|(?<=kB)  +\d+(?= )")
TOLERANCE = 0.02
COMMANDS = {
    "inspect": "inspect pool",
    "prune_written": "prune pool out --ratio 4 --by confidence --prefer hard",
    "plan": "plan pool --budget 50% --codec f16 --codec int8 --codec int4 --codec topk:3",
    "import": "import labels out --images labelled",
    "analyze": "analyze images --real images --teacher small-resnet10:width=8,stem_stride=2 "
    "--teacher-weights random --size 16 --threads 1",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    batches = [
        replace(batch, labels=make_logits(8, 40, seed=number))
        for number, batch in enumerate(make_batches(4, 8, classes=40))
    ]
    images = make_images(classes=40)
    write_pool(root / "pool", batches, header=make_header(40), images=images).close()
    write_images(root / "labelled")
    write_real_images(root / "images")
    # So many classes that what torch writes around labels, more or less by version, is little beside them.
    write_epochs(root / "labels", epochs=2, ids_file=True, classes=4000)
    return root


def run(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch, words: str, width: int, **environment: str
) -> str:
    """Return what a command prints at a width."""
    shutil.rmtree(place / "out", ignore_errors=True)
    monkeypatch.chdir(place)
    for name in ("FORCE_COLOR", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"COLUMNS": str(width), **environment}.items():
        monkeypatch.setenv(name, value)
    return passed(cli(*words.split())).stdout


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_table_looks_as_recorded(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch, name: str, width: int
) -> None:
    if name in ("plan", "prune_written") and pa.__version__.startswith("18."):
        pytest.skip("footers of Arrow 18 are larger, so fewer batches fit a budget")
    text = run(cli, place, monkeypatch, COMMANDS[name], width)
    assert not ANSI.search(text), "colour where nobody asked for it"
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text, "a number is cut"
    file = SNAPSHOTS / f"{name}_{width}.txt"
    if os.environ.get("LPLD_RECORD"):
        file.write_text(text)
    recorded = file.read_text()
    assert MEASURED.sub(_hidden, text) == MEASURED.sub(_hidden, recorded)
    found, wanted = ([float(number) for number in MEASURED.findall(page)] for page in (text, recorded))
    assert found == pytest.approx(wanted, rel=TOLERANCE)


def _hidden(number: re.Match[str]) -> str:
    return re.sub(r"\d", "0", number[0])


@pytest.mark.parametrize("name", ["inspect", "plan"])
def test_colour_changes_nothing_but_colour(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plain = run(cli, place, monkeypatch, COMMANDS[name], 80)
    coloured = run(cli, place, monkeypatch, COMMANDS[name], 80, FORCE_COLOR="1", TERM="xterm-256color")
    without = run(cli, place, monkeypatch, COMMANDS[name], 80, FORCE_COLOR="1", NO_COLOR="1")
    assert ANSI.search(coloured)
    assert ANSI.sub("", coloured) == plain
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", without), "NO_COLOR"
    assert ANSI.sub("", without) == plain
