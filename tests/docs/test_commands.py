"""Commands that the documents show are run, in a folder that has what they name."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from safetensors.torch import save_file

from lpld_core.networks.models import network_source
from tests.docs.documents import NAMES, PROJECT, blocks, commands
from tests.docs.photos import write_photos
from tests.factories import make_batches, write_pool
from tests.lpld_labels.interop.label_folders import write_epochs
from tests.lpld_labels.interop.label_folders import write_images as write_labelled

Cli = Callable[..., Result]
NETWORK = "small-resnet10:width=8,stem_stride=2"
TEACHER = ("--teacher", NETWORK, "--teacher-weights", "teacher.safetensors")
SMALLER = {"--teacher resnet18": " ".join(TEACHER), "width=32": "width=8", "--jobs 8": "--jobs 1"}
SMALLER["--phases soft:50,hard:200,soft:50"] = "--phases soft:1,hard:1"
"""What documents say, and what is run in its place so that a test can wait for it."""
ALSO: dict[str, tuple[object, ...]] = {
    "squeeze": ("--epochs", 1, "--threads", 1),
    "recover": ("--ipc", 2, "--iterations", 2, "--threads", 1, "--size", 32),
    "build": ("--epochs", 20, "--batch-size", 4, "--size", 32, "--threads", 1),
    "train": ("--epochs", 2, "--student", NETWORK, "--threads", 1),
    "analyze": ("--size", 32),
}
"""Options that are added: of two of the same name the last counts."""
SEQUENCES = (
    "docs/method.md",
    "docs/report.md",
    "docs/howto/choose.md",
    "docs/howto/read.md",
)
"""Blocks whose commands build on each other."""
LISTS = ("docs/howto/import.md",)
"""Blocks whose commands each have a folder to themselves."""
ELSEWHERE = {
    "docs/publish.md": "tests/docs/test_publish.py",
    "docs/howto/install.md": "tests/package/test_wheel.py",
    "docs/howto/remote.md": "tests/lpld_labels/io",  # against servers of S3 and HTTP
    "docs/howto/devices.md": "tests/lpld_core/train/test_ranks.py",  # several processes
    "docs/howto/gpu.md": "tests/cli/test_doctor.py",
    "docs/clusters.md": "tests/engines",  # Slurm, Ray and GPUs
}
"""Documents with shell blocks that other tests run, as written or with the same options."""


def shell_blocks(name: str) -> list[str]:
    """Return the shell blocks of a document that run our commands and have no test of their own."""
    text = (PROJECT / name).read_text()
    tested = {text.count("\n", 0, mark.end()) + 1 for mark in re.finditer("<!-- run by ", text)}
    return [
        block.code
        for block in blocks(text)
        if block.language in {"sh", "bash"} and "lpld-labels " in block.code and block.line - 1 not in tested
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, images, a teacher, pools and an old label folder under the names that documents use."""
    work = tmp_path_factory.mktemp("documents")
    for name, count in (("train", 6), ("val", 2), ("mine/train", 6), ("syn", 4)):
        write_photos(work / name, per_class=count, seed=count)
    torch.manual_seed(0)
    save_file(network_source(NETWORK).build(3).module.state_dict(), work / "teacher.safetensors")
    batches = make_batches(2, 4)
    for number, name in enumerate(("pool_a", "pool_b")):
        write_pool(work / name, batches[number::2]).close()
    write_labelled(work / "syn_data")
    write_epochs(work / "FKD_cutmix_fp16", ids_file=True)
    return work


@pytest.fixture(scope="module")
def prepared(made: Path) -> Path:
    """The same with what the commands of ours make of it."""
    from lpld_cli.main import group

    def run(*words: object) -> None:
        group.main([str(word) for word in words], standalone_mode=False)

    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        statistics = ("stats.safetensors", *TEACHER, "--threads", 1)
        run("squeeze", "train", *statistics, "--size", 32)
        run("build", "syn", "pool", *TEACHER, *ALSO["build"])
        run("prune", "pool", "pool10", "--ratio", 10)
        run("prune", "pool", "pool40", "--ratio", 40)
        run("encode", "pool", "small", "--codec", "klt")
        run("train", "pool", "--images", "syn", "--val", "val", "--out", "runs/one", *ALSO["train"])
    torch.set_num_threads(threads)
    return made


@pytest.fixture
def folder(prepared: Path, one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    del one_thread
    monkeypatch.chdir(shutil.copytree(prepared, tmp_path / "work"))
    return tmp_path / "work"


def written_by(words: list[str]) -> str | None:
    """Return what a command writes and has to be new, if it writes such a thing."""
    places = {"prune": 2, "encode": 2, "import": 2, "export": 2, "squeeze": 2, "recover": 1, "merge": 3}
    if "--apply" in words:
        return words[words.index("--apply") + 1]
    return words[places[words[0]]] if words[0] in places else None


def run(cli: Cli, words: list[str]) -> None:
    """Run a command as a shell would."""
    out = written_by(words)
    if out is not None:
        shutil.rmtree(out, ignore_errors=True)
    if "--train-teacher" in words:
        Path("teacher.safetensors").unlink()
    globbed = [path for word in words for path in (sorted(Path().glob(word)) if "*" in word else [word])]
    done = cli(*globbed, *ALSO.get(words[0], ()))
    assert done.exit_code == 0, (words, done.output)


def shown(code: str) -> list[list[str]]:
    for said, smaller in SMALLER.items():
        code = code.replace(said, smaller)
    return [words[1:] for words in commands(code) if words[0] == "lpld-labels"]


@pytest.mark.parametrize(
    ("name", "code"), [(name, code) for name in SEQUENCES for code in shell_blocks(name)]
)
def test_blocks_run(name: str, code: str, folder: Path, cli: Cli) -> None:
    del name
    if "lpld-labels build syn pool40" in code:
        shutil.rmtree(folder / "pool40")
    for words in shown(code):
        run(cli, words)


@pytest.mark.parametrize(
    "words",
    [
        words
        for name in LISTS
        for code in shell_blocks(name)
        for words in shown(code)
        if words[:4] != ["verify", "pool", "--images", "syn_data"]  # no teacher said the old folder's labels
    ],
    ids=" ".join,
)
def test_commands_run(words: list[str], folder: Path, cli: Cli) -> None:
    run(cli, words)


def test_no_document_is_left_out() -> None:
    with_commands = {name for name in NAMES if shell_blocks(name)}
    assert with_commands <= {*SEQUENCES, *LISTS, *ELSEWHERE}
    assert all((PROJECT / test).exists() for test in ELSEWHERE.values())
    here = [words for name in (*SEQUENCES, *LISTS) for code in shell_blocks(name) for words in shown(code)]
    assert len(here) > 15
