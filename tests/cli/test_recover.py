import json
import re
from pathlib import Path

import pytest
from lpld_cli.main import group

from tests.cli.build_runs import TINY, Cli, facts, one_line_error, passed
from tests.lpld_core.networks import noisy_folder

SHORT = ("--ipc", "2", "--iterations", "3", "--format", "png", "--class-group", "2")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noisy_folder(tmp_path_factory.mktemp("recover") / "real", classes=3, images=9)


@pytest.fixture(scope="module")
def squeezed(real: Path) -> tuple[str, ...]:
    """Options for a trained teacher of the real images and its statistics."""
    teacher, statistics = real.parent / "t.safetensors", real.parent / "s.safetensors"
    network = (*map(str, TINY[:2]), "--size", "8", "--threads", "1", "--teacher-weights", str(teacher))
    words = ["squeeze", str(real), str(statistics), *network, "--train-teacher", "--epochs", "1"]
    group.main(words, standalone_mode=False)
    return (*network, "--statistics", str(statistics))


def images(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*_*.png"))}


def test_images_by_every_method(cli: Cli, squeezed: tuple[str, ...], real: Path, tmp_path: Path) -> None:
    made: list[dict[str, bytes]] = []
    for method, more in (
        ("lpld", ()),
        ("lpld", ("--statistics-kind", "global")),
        ("sre2l", ()),
        ("cda", ()),
        ("rded", ("--real", real)),
    ):
        out = tmp_path / f"out{len(made)}"
        shown = passed(cli("recover", out, *squeezed, *SHORT, "--method", method, *more)).stdout
        assert re.search(r"made images\W+6", shown)
        assert "contact_sheet.png" in shown
        made.append(images(out))
        record = json.loads((out / "recover.json").read_text())
        assert (record["method"], record["ipc"]) == (method, 2)
        expected = {f"class{c}/class{c}_{n:05d}.png" for c in range(3) for n in range(2)}
        assert set(made[-1]) - {"contact_sheet.png"} == expected
    contents = {tuple(sorted(files.items())) for files in made}
    assert len(contents) == 5, "two methods made the same images"


def test_second_run_keeps_what_is_there(cli: Cli, squeezed: tuple[str, ...], tmp_path: Path) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    words = ("recover", out, *squeezed, *SHORT)
    first = facts(cli(*words, "--part", "1/2", "--json"))
    assert (first["made_groups"], first["complete"], first["contact_sheet"]) == (1, False, None)
    second = facts(cli(*words, "--json"))
    assert (second["made_groups"], second["kept_groups"], second["complete"]) == (1, 1, True)
    assert second["cross_entropy"] > 0
    passed(cli("recover", whole, *squeezed, *SHORT))
    assert images(out) == images(whole)
    one_line_error(cli(*words, "--alpha", "0.5"), "'alpha' differs", "--overwrite")
    # Of the first run, which had more images, nothing is left.
    fewer = ("--ipc", 1, "--seed", 2)
    passed(cli(*words, *fewer, "--overwrite"))
    passed(cli("recover", tmp_path / "fresh", *squeezed, *SHORT, *fewer))
    assert images(out) == images(tmp_path / "fresh")
