"""The README's commands, from a folder of images to a student and other forms of its pool, run as written."""

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


def test_the_commands_of_the_readme(
    tmp_path: Path, project: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (project / "README.md").read_text()
    blocks = re.findall(
        r"<!-- run by tests/cli/test_own_folder\.py -->\n```bash\n(.*?)```", readme, re.DOTALL
    )
    assert len(blocks) == 2
    ours = [words[1:] for words in commands("".join(blocks)) if words[0] == "lpld-labels"]
    assert [words[0] for words in ours[:5]] == ["squeeze", "recover", "build", "prune", "train"]
    write_images(tmp_path / "mine" / "train", classes=2, per_class=8, side=32)
    write_images(tmp_path / "mine" / "val", classes=2, per_class=4, side=32)
    monkeypatch.chdir(tmp_path)
    for words in ours:
        # More threads than cores would make test processes wait for each other.
        done = cli(*words, *(("--threads", 1) if words[0] in BY_THREADS else ()))
        assert done.exit_code == 0, (words, done.output)
        assert words[0] != "train" or "top1" in done.stdout
    for name in (
        "teacher.safetensors",
        "syn/contact_sheet.png",
        "pool10/pool.json",
        "student/student.safetensors",
        "report.html",
        "imported/pool.json",
    ):
        assert (tmp_path / name).is_file(), name
