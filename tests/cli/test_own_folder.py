"""The tutorial's Python and commands: from a folder of digits to a student."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lpld_labels import PoolReader
from tests.docs.documents import Block, blocks, commands

BY_THREADS = {"squeeze", "recover", "build", "train"}
SHORTER: dict[str, tuple[object, ...]] = {
    "squeeze": ("--epochs", 3),
    "recover": ("--iterations", 40),
    "build": ("--epochs", 100),
    "train": ("--epochs", 40),
}
"""Options that are added: of two of the same name the last counts."""


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("added", "batches", "least"),
    [
        pytest.param(SHORTER, 200, 0.25, id="short", marks=pytest.mark.slow),
        pytest.param({}, 600, 0.75, id="whole", marks=[pytest.mark.thorough, pytest.mark.timeout(900)]),
    ],
)
def test_the_tutorial(
    added: dict[str, tuple[object, ...]],
    batches: int,
    least: float,
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
    digits, python = (block for block in blocks(text) if block.language == "python")
    monkeypatch.chdir(tmp_path)
    run(digits)
    assert len(list(Path("data").rglob("*.png"))) == 5000
    for command, *words in ours:
        # More threads than cores would make test processes wait for each other.
        done = cli(
            command, *words, *added.get(command, ()), *(("--threads", 1) if command in BY_THREADS else ())
        )
        assert done.exit_code == 0, (command, words, done.output)
    reached = json.loads(Path("student/log.jsonl").read_text().splitlines()[-1])["top1"]
    assert reached >= least, "the student is hardly better than chance (0.1), or worse than the page promises"
    for name in (
        "teacher.safetensors",
        "syn/contact_sheet.png",
        "student/student.safetensors",
        "report.html",
        "imported/pool.json",
    ):
        assert Path(name).is_file(), name
    with PoolReader("pool") as whole, PoolReader("small4") as small:
        assert (whole.manifest.counts.batches, small.manifest.counts.batches) == (batches, batches // 4)
        assert [step.operation for step in small.header.lineage] == ["build", "prune", "encode"]
    capsys.readouterr()
    run(python)
    assert "torch.Size([16, 3, 28, 28])" in capsys.readouterr().out


def run(block: Block) -> None:
    """Run Python, so that a traceback names the line in the document."""
    exec(compile("\n" * block.line + block.code, "tutorial.md", "exec"), {})  # noqa: S102
