from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.unfinished import partial_directory
from tests.cli.build_runs import SETTINGS, TEACHER, Cli, one_line_error
from tests.lpld_core.image_folders import SIDE, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "folder")


@pytest.fixture(scope="module")
def expected(images: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Content digest of the pool built in one go."""
    out = tmp_path_factory.mktemp("pools") / "pool"
    done = subprocess.run(command(images, out, "--json"), capture_output=True, text=True, check=True)
    assert done.stderr == ""
    facts = json.loads(done.stdout)
    assert facts["batches"] == facts["labelled_batches"] == 240
    return str(facts["content_digest"])


def command(images: Path, out: Path, *more: object) -> list[str]:
    script = Path(sys.executable).with_name("lpld-labels")
    return [str(word) for word in (script, "build", images, out, *TEACHER, *SETTINGS, *more)]


def digest(path: Path) -> str:
    with PoolReader(path) as pool:
        return pool.manifest.content_digest


SMALL_SHARDS = """
from lpld_cli.main import main
from lpld_core.relabel import build
build.SHARD_SECONDS = 0.0  # a batch each, however fast the teacher is
if __name__ == "__main__":
    main()
"""


def finished_shards(out: Path) -> list[Path]:
    return list(partial_directory(out).glob("records/*"))


def start_and_wait_for_work(images: Path, out: Path, *more: object) -> subprocess.Popen[str]:
    """Return a build that is at work, and has sealed some of it. One that was too fast is started again."""
    for _ in range(5):
        words = [sys.executable, "-c", SMALL_SHARDS, *command(images, out, *more)[1:]]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        while process.poll() is None:
            if len(finished_shards(out)) >= 3:
                return process
            time.sleep(0.002)
        process.communicate()
        shutil.rmtree(out, ignore_errors=True)
    pytest.fail("the build ended before it could be stopped")


@pytest.mark.timing
def test_killed_and_resumed(images: Path, expected: str, tmp_path: Path, cli: Cli) -> None:
    process = start_and_wait_for_work(images, tmp_path / "pool")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "pool/pool.json").exists()
    assert cli("build", images, tmp_path / "pool", *TEACHER, *SETTINGS).exit_code == 0
    assert digest(tmp_path / "pool") == expected


@pytest.mark.timing
def test_ctrl_c_keeps_finished_work(images: Path, expected: str, tmp_path: Path, cli: Cli) -> None:
    process = start_and_wait_for_work(images, tmp_path / "pool")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130
    assert "run the same command again" in stderr
    assert "Traceback" not in stderr
    assert cli("build", images, tmp_path / "pool", *TEACHER, *SETTINGS).exit_code == 0
    assert digest(tmp_path / "pool") == expected


def test_three_processes(images: Path, expected: str, tmp_path: Path) -> None:
    options = ("--jobs", 3, "--image-cache", tmp_path / "cache")
    done = subprocess.run(
        command(images, tmp_path / "pool", *options, "--json"), check=True, capture_output=True
    )
    assert json.loads(done.stdout)["labelled_batches"] == 240
    assert any((tmp_path / "cache").iterdir())
    assert digest(tmp_path / "pool") == expected


def test_three_parts(images: Path, expected: str, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "pool"
    for part in ("2/3", "3/3", "1/3"):
        result = cli("build", images, out, *TEACHER, *SETTINGS, "--part", part)
        assert result.exit_code == 0, result.output
        assert ("the last part publishes" in result.stderr) == (part != "1/3")
        assert (out / "pool.json").exists() == (part == "1/3")
    assert digest(out) == expected


def test_two_processes_label_one_part_and_no_more(images: Path, tmp_path: Path) -> None:
    options = ("--epochs", 4, "--part", "2/3", "--jobs", 2, "--json")
    done = subprocess.run(command(images, tmp_path / "pool", *options), check=True, capture_output=True)
    assert json.loads(done.stdout)["labelled_batches"] == 24 // 3


@pytest.mark.timing
def test_a_dead_process_is_reported_and_its_work_taken_up(
    images: Path, expected: str, tmp_path: Path, cli: Cli
) -> None:
    out = tmp_path / "pool"
    process = start_and_wait_for_work(images, out, "--jobs", 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        process.kill()
        process.communicate()
        pytest.skip("needs /proc to find the processes")
    workers = [int(pid) for pid in children.read_text().split()]
    labelling = [pid for pid in workers if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(labelling[-1], signal.SIGKILL)
    _, stderr = process.communicate()
    assert process.returncode == 1
    assert "died" in stderr
    assert "run the same command again" in stderr
    assert cli("build", images, out, *TEACHER, *SETTINGS).exit_code == 0
    assert digest(out) == expected


def test_grown_and_pruned(images: Path, expected: str, tmp_path: Path, cli: Cli) -> None:
    grown, small = tmp_path / "grown", tmp_path / "small"
    for ratio, labelled in ((40, 5), (20, 5), (1, 230)):
        result = cli("build", images, grown, *TEACHER, *SETTINGS, "--ratio", ratio, "--json")
        assert json.loads(result.stdout)["labelled_batches"] == labelled
    assert digest(grown) == expected
    cli("build", images, small, *TEACHER, *SETTINGS, "--ratio", 40)
    assert cli("prune", grown, tmp_path / "pruned", "--ratio", 40).exit_code == 0
    assert digest(small) == digest(tmp_path / "pruned")


def test_verify_agrees_and_names_what_does_not(images: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "pool"
    cli("build", images, out, *TEACHER, *SETTINGS, "--epochs", 2)
    good = cli("verify", out, "--images", images, *TEACHER, "--json")
    assert good.exit_code == 0
    assert json.loads(good.stdout)["teacher"]["rows_above_tolerance"] == 0
    other = ("--teacher", "small-resnet10:width=9", "--teacher-weights", "random", "--size", SIDE)
    wrong = cli("verify", out, "--images", images, *other)
    assert wrong.exit_code == 1
    assert "small-resnet10:width=9" in wrong.stdout


def test_explicit_options_replace_the_presets(images: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "pool"
    options = ("--mix", "mixup", "--no-flip", "--cutout", 0.25, "--crop-scale", 0.5, 0.9, "--resize", "pil")
    result = cli("build", images, out, *TEACHER, *SETTINGS, "--epochs", 1, *options, "--codec", "int8")
    assert result.exit_code == 0, result.output
    with PoolReader(out) as pool:
        augmentation = pool.header.augmentation
        assert (augmentation.mix, augmentation.mix_alpha) == ("mixup", 0.8)
        assert augmentation.flip_probability is None
        assert augmentation.cutout_fraction == 0.25
        assert augmentation.crop_scale == (0.5, 0.9)
        assert augmentation.resize == "pil"
        assert pool.codec.name == "int8"


def test_a_network_without_batchnorm_labels(images: Path, tmp_path: Path, cli: Cli) -> None:
    teacher = (
        "--teacher",
        "tests.lpld_core.networks:tiny_net_without_batchnorm",
        "--teacher-weights",
        "random",
    )
    options = (*teacher, "--size", SIDE, "--preset", "tiny", "--epochs", 2, "--batch-size", 5)
    result = cli("build", images, tmp_path / "pool", *options)
    assert result.exit_code == 0, result.stderr
    verified = cli("verify", tmp_path / "pool", "--images", images, *teacher, "--size", SIDE, "--json")
    assert verified.exit_code == 0, verified.stderr
    assert json.loads(verified.stdout)["teacher"]["largest_difference"] < 0.01
    other = cli("verify", tmp_path / "pool", "--images", images, *teacher, "--size", 2 * SIDE)
    one_line_error(other, "views have another size", f"--size {SIDE}")
    assert cli("verify", tmp_path / "pool", "--size", SIDE).exit_code == 2


def test_a_dry_run_says_what_it_costs_and_touches_nothing(images: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    out = tmp_path / "pool"
    run = subprocess.run(
        command(images, out, "--dry-run", "--json"), capture_output=True, text=True, check=True
    )
    facts = json.loads(run.stdout)
    assert sorted(tmp_path.rglob("*")) == before
    assert (facts["batches"], facts["views"], facts["forwards"]) == (240, 1080, 1080)
    assert facts["seconds"] > 0
    subprocess.run(command(images, out), capture_output=True, check=True)
    weighs = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    assert 0.5 < facts["final_bytes"] / weighs < 2
    shown = subprocess.run(
        command(images, out, "--dry-run", "-j", 2), capture_output=True, text=True, check=True
    )
    assert re.search(r"forwards\W+1080", shown.stdout)
    assert re.search(r"workers\W+2", shown.stdout)
    assert "about " in shown.stdout


def test_overwrite_puts_another_pool_in_place(images: Path, tmp_path: Path, cli: Cli) -> None:
    few = ("--epochs", 2, "--batch-size", 5)
    for out, seed in (("pool", 1), ("fresh", 2)):
        assert cli("build", images, tmp_path / out, *TEACHER, *few, "--seed", seed).exit_code == 0
    one_line_error(cli("build", images, tmp_path / "pool", *TEACHER, *few, "--seed", 2), "--overwrite")
    result = cli("build", images, tmp_path / "pool", *TEACHER, *few, "--seed", 2, "--overwrite")
    assert result.exit_code == 0, result.output
    assert digest(tmp_path / "pool") == digest(tmp_path / "fresh")


def test_growing_says_what_is_reused(images: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "pool"
    words = ("build", images, out, *TEACHER, "--batch-size", 5, "--epochs")
    assert cli(*words, 2).stderr == ""
    assert cli(*words, 3).stderr == f"extends {out} from 2 to 3 epochs: 2 reused\n"
    with PoolReader(out) as pool:
        batches = len(pool)
    assert cli("-q", *words, 4).stderr == ""
    other = tmp_path / "pruned"
    ratio = ("build", images, other, *TEACHER, "--batch-size", 5, "--epochs", 3, "--ratio")
    cli(*ratio, 3)
    with PoolReader(other) as pool:
        some = len(pool)
    assert cli(*ratio, 1).stderr == f"extends {other} from {some} to {batches} batches: {some} reused\n"
