import json
from pathlib import Path

from PIL import Image

from benchmarks.accuracy.cells import TINY100
from benchmarks.accuracy.kept import take
from benchmarks.accuracy.work import Workshop


def test_what_is_committed_is_whole_and_of_the_scale(tmp_path: Path) -> None:
    work = tmp_path / "work"
    take(work, TINY100)
    folders = [path for path in (work / "images").iterdir() if path.is_dir()]
    assert {folder.name.split("-")[0] for folder in folders} >= {"lpld", "sre2l"}
    for folder in folders:
        assert len(list(folder.glob("n*/*.png"))) == 100 * TINY100.ipc
        about = json.loads((folder / "recover.json").read_text())
        assert folder.name == f"{about['method']}-ipc{about['ipc']}-{about['iterations']}-plain"
        with Image.open(next(folder.glob("n*/*.png"))) as image:
            assert image.size == (TINY100.size, TINY100.size)
    # Statistics name the weights they are of, so teachers that are not theirs are refused.
    workshop = Workshop(root=work, scale=TINY100, train=tmp_path, validation=tmp_path)
    workshop.statistics("plain").check_teacher(workshop.teacher("plain"))
