"""docs/howto/teacher.md: its module and its commands, run as written."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result

from lpld_labels import PoolReader
from tests.docs.documents import PROJECT, blocks, commands
from tests.docs.photos import write_photos


@pytest.mark.usefixtures("one_thread")
def test_teachers_of_ones_own_label_and_are_verified(
    tmp_path: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    write_photos(tmp_path / "syn", per_class=2, seed=0)
    monkeypatch.chdir(tmp_path)
    text = (PROJECT / "docs" / "howto" / "teacher.md").read_text()
    (module,) = (block.code for block in blocks(text) if block.language == "python")
    (shell,) = (block.code for block in blocks(text) if block.language == "bash")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], num_labels=3)
    transformers.ResNetForImageClassification(config).save_pretrained("hub")
    processor = transformers.ConvNextImageProcessor(size={"shortest_edge": 48})
    processor.save_pretrained("hub")
    Path("my_teachers.py").write_text(module)
    network = runpy.run_path("my_teachers.py")["small"]()
    torch.save({"epoch": 9, "state_dict": network.state_dict()}, "mine.pt")
    assert "hf:microsoft/resnet-50" in shell
    shell = shell.replace("microsoft/resnet-50", "hub")
    ours = [words[1:] for words in commands(shell) if words[0] == "lpld-labels"]
    assert [words[0] for words in ours] == ["build", "verify"] * 2
    for words in ours:
        done = cli(*words, "--threads", 1, *(("--batch-size", 3) if words[0] == "build" else ()))
        assert done.exit_code == 0, (words, done.output)
    with PoolReader("pool") as small, PoolReader("pool_hf") as large:
        assert small.header.teachers[0].mean == (0.5, 0.5, 0.5)
        assert small.header.augmentation.output_height == 32
        assert large.header.augmentation.output_height == 48
    denied = cli(*ours[1], "--mean", "0.4,0.4,0.4", "--threads", 1)
    assert denied.exit_code == 1
    assert "is used with mean" in denied.output
