"""What took hours is kept, and a new work directory begins with it."""

import filecmp
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.accuracy.cells import DIGITS, TINY100, Cell
from benchmarks.accuracy.kept import keep, take
from benchmarks.accuracy.work import Workshop
from lpld_labels.errors import InvalidArgumentError

SCALE = replace(DIGITS, teacher_epochs=1, iterations=2, ipc=1)


def test_a_new_work_directory_begins_with_what_is_kept(tmp_path: Path) -> None:
    work, kept, new = tmp_path / "work", tmp_path / "kept", tmp_path / "new"
    workshop = Workshop.open(work, SCALE)
    for method in ("lpld", "real"):
        workshop.images(Cell(method=method, ratio=1, teacher="plain"))
    (work / "images" / "sre2l-ipc1-2-plain").mkdir()  # unfinished
    names = ["teacher-plain.safetensors", "teacher-plain.json", "statistics-plain.safetensors"]
    assert keep(work, SCALE, kept) == [*names, "lpld-ipc1-2-plain.tar", "lpld-ipc1-2-plain.seconds"]
    assert keep(work, SCALE, kept) == []
    take(new, replace(SCALE, teacher_epochs=2), kept)
    assert not new.exists(), "another scale"
    new.mkdir()
    (new / "teacher-plain.json").write_text("mine")
    take(new, SCALE, kept)
    assert (new / "teacher-plain.json").read_text() == "mine"
    (new / "teacher-plain.json").unlink()
    take(new, SCALE, kept)
    found = [str(path.relative_to(new)) for path in new.rglob("*") if path.is_file()]
    assert len(found) > len(names) + SCALE.ipc * 10
    assert filecmp.cmpfiles(work, new, found, shallow=False) == (found, [], [])
    # Finished: it is used as it is, whatever the recipe of today would make.
    before = (new / "teacher-plain.safetensors").stat().st_mtime_ns
    Workshop.open(new, SCALE).images(Cell(method="lpld", ratio=1, teacher="plain"))
    assert (new / "teacher-plain.safetensors").stat().st_mtime_ns == before
    with pytest.raises(InvalidArgumentError, match="'amp'"):
        Workshop.open(work, replace(SCALE, amp=False)).teacher("plain")


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
