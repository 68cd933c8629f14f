"""docs/publish.md, run as written: from a pool and its images to an S3 server, a web server, and back."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from safetensors.torch import save_file

from lpld_core.networks.models import network_source
from lpld_labels.pool.pool_files import manifest_of
from tests.docs.documents import PROJECT, blocks, commands
from tests.docs.photos import write_photos
from tests.servers.files import FileServer
from tests.servers.s3 import S3Server

Cli = Callable[..., Result]
NETWORK = "small-resnet10:width=8,stem_stride=2"
SMALLER = {"width=16": "width=8", "--preset tiny": "--preset tiny --threads 1"}
"""What the page says, and what is run in its place so that a test can wait for it."""
SITE = "https://example.org"


@pytest.fixture
def folder(tmp_path: Path, cli: Cli, one_thread: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the tutorial leaves: images, their pool and its teacher, all smaller."""
    del one_thread
    write_photos(tmp_path / "syn", per_class=4, seed=0)
    write_photos(tmp_path / "photos" / "val", per_class=2, seed=1)
    torch.manual_seed(0)
    save_file(network_source(NETWORK).build(3).module.state_dict(), tmp_path / "teacher.safetensors")
    monkeypatch.chdir(tmp_path)
    teacher = ("--teacher", NETWORK, "--teacher-weights", "teacher.safetensors", "--size", 32)
    built = cli("build", "syn", "pool", *teacher, "--epochs", 20, "--batch-size", 4, "--threads", 1)
    assert built.exit_code == 0, built.output
    assert cli("prune", "pool", "pool10", "--ratio", 10).exit_code == 0
    return tmp_path


def run_python(code: str, folder: Path) -> str:
    """Run a block in a process of its own, so that `datasets` keeps its files here and asks no network."""
    environment = {**os.environ, "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_page_goes_there_and_back(folder: Path, cli: Cli, s3: S3Server, http: FileServer) -> None:
    pytest.importorskip("datasets", minversion="2.20")
    s3.make_bucket("bucket")
    text = (PROJECT / "docs" / "publish.md").read_text()
    assert not {shown for shown in (*SMALLER, SITE) if shown not in text}
    for shown, run in SMALLER.items():
        text = text.replace(shown, run)
    printed = []
    for block in blocks(text):
        if block.language == "python":
            printed.append(run_python(block.code, folder))
        for program, *words in commands(block.code) if block.language == "sh" else ():
            assert program == "lpld-labels"
            if any(word.startswith(SITE) for word in words):
                http.add(folder / "whole", "whole")
            done = cli(*(word.replace(SITE, http.url) for word in words))
            assert done.exit_code == 0, (words, done.output)
    first, second = printed
    assert "torch.Size([4, 3, 32, 32]) torch.Size([4, 3])" in first
    assert "(36, 44) ['cats', 'dogs', 'owls']" in second
    whole = manifest_of("whole")
    assert manifest_of("fetched").dump() == whole.dump()
    assert manifest_of("half").counts.batches == whole.counts.batches // 2
    for path in sorted((folder / "syn").rglob("*.jpg")):
        assert (folder / "images" / path.relative_to(folder / "syn")).read_bytes() == path.read_bytes()
    assert json.loads((folder / "fetched-student" / "log.jsonl").read_text().splitlines()[-1])["epoch"] == 1
