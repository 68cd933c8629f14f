"""The tutorial's commands and Python, as written: from a folder of images to a student."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lpld_labels import PoolReader
from tests.docs.documents import blocks, commands
from tests.lpld_core.image_folders import write_images

BY_THREADS = {"squeeze", "recover", "build", "train"}


@pytest.mark.usefixtures("one_thread")
def test_the_commands_of_the_tutorial(
    tmp_path: Path,
    project: Path,
    cli: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (project / "docs" / "tutorial.md").read_text()
    shell = re.findall(r"<!-- run by tests/cli/test_own_folder\.py -->\n```bash\n(.*?)```", text, re.DOTALL)
    assert len(shell) == 2 == text.count("```bash")
    ours = [words[1:] for words in commands("".join(shell)) if words[0] == "lpld-labels"]
    assert [words[0] for words in ours[:5]] == ["squeeze", "recover", "build", "prune", "train"]
    write_images(tmp_path / "photos" / "train", classes=2, per_class=8, side=32)
    write_images(tmp_path / "photos" / "val", classes=2, per_class=4, side=32)
    monkeypatch.chdir(tmp_path)
    for words in ours:
        # More threads than cores would make test processes wait for each other.
        done = cli(*words, *(("--threads", 1) if words[0] in BY_THREADS else ()))
        assert done.exit_code == 0, (words, done.output)
        assert words[0] != "train" or "top1" in done.stdout
    for name in (
        "teacher.safetensors",
        "syn/contact_sheet.png",
        "student/student.safetensors",
        "student/log.jsonl",
        "report.html",
        "imported/pool.json",
    ):
        assert (tmp_path / name).is_file(), name
    with PoolReader("pool") as whole, PoolReader("small10") as small:
        assert (whole.manifest.counts.batches, small.manifest.counts.batches) == (30, 3)
        assert [step.operation for step in small.header.lineage] == ["build", "prune", "encode"]
    capsys.readouterr()
    (python,) = (block for block in blocks(text) if block.language == "python")
    exec(compile("\n" * python.line + python.code, "tutorial.md", "exec"), {})  # noqa: S102
    assert "torch.Size([16, 3, 32, 32])" in capsys.readouterr().out
