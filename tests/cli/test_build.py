import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from lpld_core.networks.models import network_source
from lpld_core.networks.weights import save_weights
from lpld_labels.pool.pool_files import manifest_of
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.unfinished import partial_directory
from tests.cli.build_runs import TEACHER, Cli, facts, one_line_error, passed
from tests.lpld_core.image_folders import NETWORK, SIDE, write_images

EPOCHS = 12
SETTINGS = ("--preset", "tiny", "--epochs", EPOCHS, "--batch-size", 5, "--seed", 3)
"""27 images make six batches an epoch, the last of them incomplete."""


@pytest.fixture(scope="module")
def expected(images: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Content digest of the pool built in one go, by the installed script."""
    out = tmp_path_factory.mktemp("pools") / "pool"
    done = subprocess.run(command(images, out), capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return digest(out)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images that a test may change."""
    return write_images(tmp_path / "folder")


def command(images: Path, out: Path, *more: object) -> list[str]:
    script = Path(sys.executable).with_name("lpld-labels")
    return [str(word) for word in (script, "build", images, out, *TEACHER, *SETTINGS, *more)]


def digest(path: Path) -> str:
    return manifest_of(path).content_digest


SMALL_SHARDS = """
from lpld_cli.main import main
from lpld_core.relabel import build
build.SHARD_SECONDS = 0.0  # a batch each, however fast the teacher is
if __name__ == "__main__":
    main()
"""


def start_and_wait_for_work(images: Path, out: Path, *more: object) -> subprocess.Popen[str]:
    """Return a build that is at work, and has sealed some of it. One that was too fast is started again."""
    for _ in range(5):
        words = [sys.executable, "-c", SMALL_SHARDS, *command(images, out, *more)[1:]]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        while process.poll() is None:
            if len(list(partial_directory(out).glob("records/*"))) >= 3:
                return process
            time.sleep(0.002)
        process.communicate()
        shutil.rmtree(out, ignore_errors=True)
    pytest.fail("the build ended before it could be stopped")


@pytest.mark.timing
def test_ctrl_c_keeps_finished_work(images: Path, expected: str, tmp_path: Path, cli: Cli) -> None:
    process = start_and_wait_for_work(images, tmp_path / "pool")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130
    assert "run the same command again" in stderr
    assert "Traceback" not in stderr
    assert not (tmp_path / "pool/pool.json").exists()
    passed(cli("build", images, tmp_path / "pool", *TEACHER, *SETTINGS))
    assert digest(tmp_path / "pool") == expected


@pytest.mark.timing
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find the processes")
def test_a_dead_process_is_reported_and_its_work_taken_up(
    images: Path, expected: str, tmp_path: Path, cli: Cli
) -> None:
    out = tmp_path / "pool"
    process = start_and_wait_for_work(images, out, "--jobs", 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    labelling = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(int(labelling[-1]), signal.SIGKILL)
    _, stderr = process.communicate()
    assert process.returncode == 1
    assert "died" in stderr
    assert "run the same command again" in stderr
    passed(cli("build", images, out, *TEACHER, *SETTINGS))
    assert digest(out) == expected


def test_three_parts_one_by_two_processes(images: Path, expected: str, tmp_path: Path, cli: Cli) -> None:
    out, cache = tmp_path / "pool", tmp_path / "cache"
    for part, more in (("2/3", ("--jobs", 2, "--image-cache", cache)), ("3/3", ()), ("1/3", ())):
        result = passed(cli("build", images, out, *TEACHER, *SETTINGS, "--part", part, *more))
        assert re.search(r"labelled batches\W+24\b", result.stdout)
        assert ("the last part publishes" in result.stderr) == (part != "1/3")
        assert (out / "pool.json").exists() == (part == "1/3")
    assert any(cache.iterdir())
    assert digest(out) == expected


def test_explicit_options_replace_the_presets(images: Path, tmp_path: Path, cli: Cli) -> None:
    options = ("--mix", "mixup", "--no-flip", "--cutout", 0.25, "--crop-scale", 0.5, 0.9, "--resize", "pil")
    few = ("--epochs", 1, "--codec", "int8", "--pack")
    passed(cli("build", images, tmp_path / "pool", *TEACHER, *SETTINGS, *few, *options))
    with PoolReader(tmp_path / "pool") as pool:
        augmentation = pool.header.augmentation
        assert (augmentation.mix, augmentation.mix_alpha) == ("mixup", 0.8)
        assert augmentation.flip_probability is None
        assert augmentation.cutout_fraction == 0.25
        assert augmentation.crop_scale == (0.5, 0.9)
        assert augmentation.resize == "pil"
        assert pool.codec.name == "int8"
        assert pool.manifest.files_of("packed")


def test_a_dry_run_says_what_it_costs_and_touches_nothing(images: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "pool"
    words = ("build", images, out, *TEACHER, *SETTINGS)
    found = facts(cli(*words, "--dry-run", "--json"))
    assert list(tmp_path.iterdir()) == []
    views = 27 * EPOCHS
    assert (found["batches"], found["views"], found["forwards"]) == (6 * EPOCHS, views, views)
    assert found["seconds"] > 0
    passed(cli(*words))
    weighs = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    assert 0.5 < found["final_bytes"] / weighs < 2
    shown = passed(cli(*words, "--dry-run", "-j", 2)).stdout
    assert re.search(r"workers\W+2", shown)
    assert "about " in shown


def test_building_again_packs_and_then_grows(images: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "pool"
    words = ("build", images, out, *TEACHER, "--epochs", 2, "--batch-size", 9)
    assert facts(cli(*words, "--ratio", 3, "--json"))["labelled_batches"] == 2
    assert facts(cli(*words, "--ratio", 3, "--pack", "--json"))["labelled_batches"] == 0
    files = manifest_of(out).files_of("packed")
    assert files
    assert facts(cli(*words, "--json"))["labelled_batches"] == 4
    assert manifest_of(out).files_of("packed") == files


def test_a_teacher_of_other_classes(cli: Cli, images: Path, tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    network = network_source(NETWORK).build(4).module
    save_weights(weights, network.state_dict(), {})
    teacher = ("--teacher", NETWORK, "--teacher-weights", weights, "--size", SIDE, "--threads", 1)
    few = ("--epochs", 1, "--batch-size", 9)
    one_line_error(cli("build", images, tmp_path / "pool", *teacher, *few), "3 classes", "got 4")
    passed(cli("build", images, tmp_path / "pool", *teacher, *few, "--fewer-classes"))
    with PoolReader(tmp_path / "pool") as pool:
        assert pool.classes == 4
    # Before anything is written.
    save_weights(weights, {name: value * float("nan") for name, value in network.state_dict().items()}, {})
    one_line_error(cli("build", images, tmp_path / "other", *teacher, *few, "--fewer-classes"), "not finite")
    assert not (tmp_path / "other").exists()


def test_images_that_are_broken_or_change(cli: Cli, folder: Path, tmp_path: Path) -> None:
    words = ("build", folder, tmp_path / "pool", *TEACHER, *SETTINGS, "--epochs", 2)
    image = folder / "class1/000.png"
    whole = image.read_bytes()
    image.write_bytes(whole[:60])
    one_line_error(cli(*words), "class1/000.png")
    assert not (tmp_path / "pool/pool.json").exists()
    image.write_bytes(whole)
    passed(cli(*words, "--ratio", 5))
    Image.new("RGB", (SIDE, SIDE)).save(image)
    one_line_error(cli(*words), "class1/000.png", "has changed")
    image.unlink()
    one_line_error(cli(*words), "class1/000.png", "class1/001.png")


def test_what_is_odd_about_a_folder_is_noted(cli: Cli, folder: Path, tmp_path: Path) -> None:
    for name in ("__MACOSX", ".cache"):
        (folder / name).mkdir()
    for name in ("a.gif", "b.txt", "c.mp4", "d.txt"):
        (folder / "class1" / name).write_text("not an image")
    words = ("build", folder, tmp_path / "pool", *TEACHER, "--preset", "tiny", "--epochs", 1)
    result = passed(cli(*words))
    assert "4 files" in result.stderr
    assert "class1/a.gif, class1/b.txt, class1/c.mp4, ..." in result.stderr
    assert "warning: 27 images do not fill a batch of 64" in result.stderr
    assert "--batch-size 27" in result.stderr
    (folder / "later").mkdir()
    one_line_error(cli(*words), "later", "contains no images")


def test_growing_says_what_is_reused(images: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "pool"
    words = ("build", images, out, *TEACHER, "--batch-size", 5, "--epochs")
    assert passed(cli(*words, 2)).stderr == ""
    assert passed(cli(*words, 3)).stderr == f"extends {out} from 2 to 3 epochs: 2 reused\n"
    with PoolReader(out) as pool:
        batches = len(pool)
    assert passed(cli("-q", *words, 4)).stderr == ""
    other = tmp_path / "pruned"
    ratio = ("build", images, other, *TEACHER, "--batch-size", 5, "--epochs", 3, "--ratio")
    passed(cli(*ratio, 3))
    with PoolReader(other) as pool:
        some = len(pool)
    stderr = passed(cli(*ratio, 1)).stderr
    assert stderr == f"extends {other} from {some} to {batches} batches: {some} reused\n"
