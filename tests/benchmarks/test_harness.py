import argparse
import subprocess
from pathlib import Path

import pytest

from benchmarks.common import harness


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    (root / "code.py").write_text("answer = 41\n")
    who = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(root), *words], check=True)
    monkeypatch.setattr(harness.uncommitted, "__defaults__", (root,))
    return root


def _parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    return harness.parsed(parser, words)


@pytest.mark.parametrize("name", ["code.py", "new.py", "name with spaces.py"])
def test_results_of_uncommitted_files_are_refused(
    repository: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / name).write_text("answer = 42\n")
    assert harness.uncommitted(repository) == [name]
    with pytest.raises(SystemExit):
        _parse("--json", "out.json")
    message = capsys.readouterr().err
    assert name in message
    assert "--allow-dirty" in message
    # Nothing is published without --json.
    assert _parse().json is None
