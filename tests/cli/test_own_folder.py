"""The README's way from one's own folder to a student, run as it is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from click.testing import Result

from tests.docs.documents import commands
from tests.lpld_core.image_folders import write_images

BY_THREADS = {"squeeze", "recover", "build", "train"}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_five_commands_lead_to_a_student(
    tmp_path: Path, project: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (project / "README.md").read_text()
    (script,) = re.findall(
        r"<!-- run by tests/cli/test_own_folder\.py -->\n```bash\n(.*?)```", readme, re.DOTALL
    )
    ours = [words[1:] for words in commands(script) if words[0] == "lpld-labels"]
    assert [words[0] for words in ours] == ["squeeze", "recover", "build", "prune", "train"]
    write_images(tmp_path / "mine" / "train", classes=2, per_class=8, side=32)
    write_images(tmp_path / "mine" / "val", classes=2, per_class=4, side=32)
    monkeypatch.chdir(tmp_path)
    for words in ours:
        # Threads of several test processes that wait for each other take minutes for seconds' work.
        done = cli(*words, *(("--threads", 1) if words[0] in BY_THREADS else ()))
        assert done.exit_code == 0, (words, done.output)
    for name in (
        "teacher.safetensors",
        "syn/contact_sheet.png",
        "pool10/pool.json",
        "student/student.safetensors",
    ):
        assert (tmp_path / name).is_file(), name
    assert "top1" in done.stdout
