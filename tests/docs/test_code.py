"""Python and SQL of the documents is run, block after block, in a folder with small pools and images."""

import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from click.testing import Result

from tests.docs.documents import NAMES, PROJECT, Block, blocks
from tests.lpld_core.image_folders import write_images as write_photos
from tests.lpld_labels.interop.label_folders import write_epochs
from tests.lpld_labels.interop.label_folders import write_images as write_labelled
from tests.lpld_labels.loader.loader_pools import build, write_images

Cli = Callable[..., Result]
NETWORK = "small-resnet10:width=32,stem_stride=2"
SMALLER = {
    "docs/howto/trainers.md": {
        "num_workers=4": "num_workers=1",
        'device="cuda"': 'device="cpu"',
        "range(300)": "range(1)",
    },
    "docs/method.md": {"ipc=10, iterations=300": "ipc=1, iterations=1"},
}
"""By document: what is shown, and what is run in its place so that a test can wait for it."""
BY_OTHERS = {"README.md", "docs/tutorial.md", "docs/publish.md", "docs/howto/teacher.md"}
"""Documents with a test of their own."""


def code_of(name: str, languages: set[str]) -> list[Block]:
    found = blocks((PROJECT / name).read_text())
    return [block for block in found if block.language in languages]


WITH_PYTHON = [name for name in NAMES if name not in BY_OTHERS and code_of(name, {"python", "py"})]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that the blocks name: pools, their images, an old label folder, real images, a teacher."""
    from safetensors.torch import save_file

    from lpld_core.networks.models import network_source

    work = tmp_path_factory.mktemp("documents")
    images = write_images(work / "syn", 24)
    build(work / "pool", images, "cutmix", epochs=3, batch_size=6, size=32)
    shutil.copytree(work / "pool", work / "pool40")
    write_labelled(work / "syn_data")
    write_epochs(work / "FKD_cutmix_fp16", ids_file=True)
    photos = write_photos(work / "train")
    shutil.copytree(photos, work / "val")
    classes = len([path for path in photos.iterdir() if path.is_dir()])
    save_file(network_source(NETWORK).build(classes).module.state_dict(), work / "teacher.safetensors")
    return work


@pytest.fixture
def folder(made: Path, cli: Cli, one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to work in."""
    del one_thread
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "work"))
    assert cli("encode", "pool", "plain", "--codec", "f16:plain").exit_code == 0
    return tmp_path / "work"


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_python_runs(name: str, folder: Path) -> None:
    namespace: dict[str, object] = {}
    unused = set(SMALLER.get(name, {}))
    for block in code_of(name, {"python", "py"}):
        code = block.code
        for shown, run in SMALLER.get(name, {}).items():
            if shown in code:
                code = code.replace(shown, run)
                unused.discard(shown)
        if block.runs:
            exec(compile("\n" * block.line + code, name, "exec"), namespace)  # noqa: S102
    assert not unused


@pytest.mark.parametrize("name", [name for name in NAMES if code_of(name, {"sql"})])
def test_sql_answers(name: str, folder: Path) -> None:
    for block in code_of(name, {"sql"}):
        statements = duckdb.extract_statements(block.code)
        assert len(statements) == 2
        for statement in statements:
            connection = duckdb.connect()
            assert connection.execute(statement).fetchall()


def test_few_blocks_are_not_run() -> None:
    left_out = [
        (name, block.language)
        for name in NAMES
        for block in code_of(name, {"python", "py", "js", "sql"})
        if not block.runs
    ]
    assert left_out == [("docs/howto/read.md", "python"), ("docs/howto/read.md", "js")]
    assert len(WITH_PYTHON) >= 5
