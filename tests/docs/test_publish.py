"""docs/publish.md, run on what the tutorial makes: from a pool to an S3 server, a web server, and back."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lpld_labels.pool.pool_files import manifest_of
from tests.docs.documents import PROJECT, blocks, commands
from tests.servers.files import FileServer
from tests.servers.processes import request
from tests.servers.s3 import S3Server

Cli = Callable[..., Result]
SHORTER: dict[str, tuple[object, ...]] = {
    "squeeze": ("--epochs", 1, "--threads", 1),
    "recover": ("--iterations", 2, "--threads", 1),
    "build": ("--epochs", 20, "--threads", 1),
    "train": ("--epochs", 2, "--threads", 1),
}
"""Options that are added: of two of the same name the last counts."""
SITE = "https://example.org"
MOTO = "http://127.0.0.1:5000"


def run(cli: Cli, words: list[str]) -> None:
    assert words[0] == "lpld-labels"
    done = cli(*words[1:], *SHORTER.get(words[1], ()))
    assert done.exit_code == 0, (words, done.output)


def run_python(code: str, folder: Path) -> str:
    """Run a block in a process of its own, so that `datasets` keeps its files here and asks no network."""
    environment = {**os.environ, "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def folder(tmp_path: Path, cli: Cli, one_thread: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run a shorter tutorial up to its pruned pool."""
    del one_thread
    monkeypatch.chdir(tmp_path)
    digits, shell = blocks((PROJECT / "docs" / "tutorial.md").read_text())[:2]
    run_python(digits.code, tmp_path)
    *made, train = (words for words in commands(shell.code) if words[0] == "lpld-labels")
    assert train[1] == "train"
    for words in made:
        run(cli, words)
    return tmp_path


@pytest.mark.slow
def test_the_page_goes_there_and_back(
    folder: Path, cli: Cli, s3: S3Server, http: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets", minversion="2.20")
    text = (PROJECT / "docs" / "publish.md").read_text()
    assert f"`curl -X PUT {MOTO}/bucket`" in text
    request(s3.port, "PUT", "/bucket")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    exported = dict(re.findall(r"`(AWS_\w+)=(\S+)`", text))
    assert exported.pop("AWS_ENDPOINT_URL") == MOTO
    assert set(exported) == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    for name, value in exported.items():
        monkeypatch.setenv(name, value)
    assert SITE in text
    printed = []
    for block in blocks(text):
        if block.language == "python":
            printed.append(run_python(block.code, folder))
        for words in commands(block.code) if block.language == "sh" else ():
            if any(word.startswith(SITE) for word in words):
                http.add(folder / "whole", "whole")
            run(cli, [word.replace(SITE, http.url) for word in words])
    first, second = printed
    assert "torch.Size([4, 3, 28, 28]) torch.Size([4, 10])" in first
    assert f"(28, 28) {[str(digit) for digit in range(10)]}" in second
    whole = manifest_of("whole")
    assert manifest_of("fetched").dump() == whole.dump()
    assert manifest_of("half").counts.batches == whole.counts.batches // 2
    card = blocks(Path("fetched", "README.md").read_text())
    places = {"POOL": "fetched", "WEIGHTS": "teacher.safetensors"}
    checks = [words for b in card for words in commands(b.code) if words[:2] == ["lpld-labels", "verify"]]
    assert len(checks) == 2
    for words in checks:
        run(cli, [places.get(word, word) for word in words])
    images = sorted(Path("syn").glob("*/*.png"))
    assert len(images) == 100
    for path in images:
        assert Path("images", *path.parts[1:]).read_bytes() == path.read_bytes()
    assert json.loads(Path("fetched-student", "log.jsonl").read_text().splitlines()[-1])["epoch"] == 1
