"""What Ray cannot do is told in one line that names the task and the file, and finished work is kept."""

import json
import sys
from pathlib import Path

import pytest

from lpld_core.images import RealFolder
from lpld_core.settings import SqueezeSettings
from lpld_core.squeeze.squeeze import squeeze_folder
from lpld_labels.errors import ImageReadError
from lpld_labels.exec.ray import RayExecutor, RaySettings
from tests.cli.build_runs import Cli, one_line_error
from tests.engines.commands import COMMANDS
from tests.engines.ray_cluster import TwoNodes
from tests.factories import make_batches, write_pool
from tests.lpld_core.image_folders import NETWORK
from tests.lpld_core.networks import noisy_folder, tiny_teacher
from tests.lpld_labels.interop import label_folders

TEACHER = ("--teacher", NETWORK, "--teacher-weights", "random")
WORDS: dict[str, tuple[str, ...]] = {
    "build": ("build", "images", "out", *TEACHER),
    "encode": ("encode", "pool", "out", "--codec", "int8"),
    "import": ("import", "labels", "out", "--images", "images"),
    "squeeze": ("squeeze", "images", "out", *TEACHER),
    "recover": ("recover", "out", *TEACHER, "--method", "sre2l", "--ipc", "1"),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what all commands read."""
    root = tmp_path_factory.mktemp("inputs")
    label_folders.write_images(root / "images")
    label_folders.write_epochs(root / "labels", epochs=1, ids_file=True)
    write_pool(root / "pool", make_batches(2, 3)).close()
    return root


@pytest.mark.parametrize("name", COMMANDS)
def test_no_ray_and_no_cluster(name: str, cli: Cli, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inputs)
    refused = cli(*WORDS[name], "--ray", "127.0.0.1:1")
    one_line_error(refused, "error: 127.0.0.1:1: cannot connect to a Ray cluster: ")
    monkeypatch.setitem(sys.modules, "ray", None)
    missing = cli(*WORDS[name], "--ray", "local")
    one_line_error(missing, "Ray is not installed; pip install 'lpld-labels[ray]', or leave out --ray")
    assert not Path("out").exists()


def test_an_address_needs_a_shared_directory(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LPLD_LABELS_CACHE", raising=False)
    result = cli("encode", "pool", "s3://bucket/pool", "--codec", "int8", "--ray", "local")
    assert result.exit_code == 2
    assert "set $LPLD_LABELS_CACHE to one" in " ".join(result.stderr.split())


def test_a_command_on_a_cluster(
    cli: Cli, cluster: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths may be relative: workers begin where the command does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lpld_labels.pool.plan.SHARD_BATCHES", 1)
    write_pool(Path("pool"), make_batches(2, 6)).close()
    asked = ("--codec", "int8", "--json")
    expected = cli("encode", "pool", "expected", *asked)
    ray = ("--ray", cluster.address, "-j", 2)
    found = cli("--progress", "json", "encode", "pool", "out", *asked, *ray)
    assert found.exit_code == 0, found.output
    digests = {json.loads(result.stdout)["content_digest"] for result in (expected, found)}
    assert len(digests) == 1
    last = json.loads([line for line in found.stderr.splitlines() if line.startswith("{")][-1])
    assert (last["done"], last["total"], last["tasks"]["done"]) == (12, 12, 12)


def test_a_broken_image_is_named_with_its_task(cluster: TwoNodes, tmp_path: Path) -> None:
    folder = RealFolder.open(noisy_folder(tmp_path / "images", classes=4, images=70))
    broken = tmp_path / "images" / "class3" / "000.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:60] + bytes(len(whole) - 60))
    kept = tmp_path / "kept"
    kept.mkdir()
    settings = SqueezeSettings(batch_size=4)
    with RayExecutor(RaySettings(address=cluster.address, workers=1)) as engine:
        with pytest.raises(ImageReadError, match=r"class3/000\.png: .*, in class class3"):
            squeeze_folder(tiny_teacher(), folder, settings, place=kept, executor=engine)
        assert len(list(kept.glob("classes-*[0-9a-f].safetensors"))) == 3
        broken.write_bytes(whole)
        squeeze_folder(tiny_teacher(), folder, settings, place=kept, executor=engine)
