import argparse
import subprocess
from pathlib import Path

import pytest

from benchmarks.common import harness


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "repository"
    (root / "benchmarks" / "results").mkdir(parents=True)
    (root / "code.py").write_text("answer = 41\n")
    (root / "benchmarks" / "results" / "one.json").write_text("{}\n")
    who = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(root), *words], check=True)
    monkeypatch.setattr(harness.uncommitted, "__defaults__", (root,))
    return root


def _parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    return harness.parsed(parser, words)


def test_results_of_a_commit_are_written(repository: Path) -> None:
    for name in ("one", "two"):
        (repository / "benchmarks" / "results" / f"{name}.json").write_text('{"new": 1}\n')
    assert harness.uncommitted(repository) == []
    assert _parse("--json", "out.json").json == Path("out.json")
    assert harness.circumstances()["uncommitted_files"] == 0


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


def test_uncommitted_files_can_be_allowed_and_are_recorded(repository: Path, tmp_path: Path) -> None:
    (repository / "code.py").write_text("answer = 42\n")
    assert _parse("--json", "out.json", "--allow-dirty").allow_dirty
    assert harness.circumstances()["uncommitted_files"] == 1
    assert harness.uncommitted(tmp_path) == ["all files"], "no repository"


def test_a_result_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("before")
    with pytest.raises(TypeError):
        harness.write_whole(path, {"value": object()})
    assert path.read_text() == "before"
    harness.write_whole(path, {"value": 1})
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]
