"""One student, several processes: the same steps, the same weights, and a killed process is no loss.

`make ranks` kills a process at five moments and goes on with one, two and three.
"""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lpld_core.networks.weights import read_weights
from lpld_core.relabel.build import build_pool
from lpld_core.settings import TeacherChoice
from lpld_core.train.settings import TrainSettings
from tests.clients.launching import environment, launcher
from tests.lpld_core.image_folders import SMALL_BUILD, write_images
from tests.lpld_core.train.rank_cases import CASES, Rows, recorded_rows, train

WORKERS = Path(__file__).parent
TOLERANCE = 1e-9
"""Relative, of float64 weights; 1e-14 was seen."""
EVERY_MOMENT = bool(os.environ.get("LPLD_RANK_MOMENTS"))
MOMENTS = [(0, 1), (1, 4), (0, 7), (1, 12), (0, 18)]
MISTAKES = [
    (["--no-such-option"], "No such option", 2),
    (["--out", "images/run"], "the output is inside an input", 1),
    (["--batch-size", "7"], "the batch size cannot be divided equally", 1),
]
TRAINING = ("--student", "tests.lpld_core.networks:double_net", "--epochs", "3", "--evaluate-every", "1")


@pytest.fixture(scope="module")
def place(choice: TeacherChoice, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `images` and `pool`: six label batches of 6 rows an epoch."""
    root = tmp_path_factory.mktemp("ranks")
    images = write_images(root / "images", per_class=12)
    build_pool(images, root / "pool", replace(SMALL_BUILD, epochs=3, batch_size=6, teachers=(choice,)))
    return root


@pytest.fixture(scope="module")
def alone(place: Path) -> dict[str, Rows]:
    """Rows by case, of one process; its results are below `alone`."""
    rows: dict[str, Rows] = {}
    for name in CASES:
        with recorded_rows() as rows[name]:
            train(place, name, place / "alone" / name)
    return rows


def torchrun(ranks: int, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*launcher(ranks), *map(str, words)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def tensors(run: Path) -> dict[str, torch.Tensor]:
    return read_weights(run / "student.safetensors").tensors


def assert_same_weights(found: Path, expected: Path) -> None:
    wanted, got = tensors(expected), tensors(found)
    assert wanted.keys() == got.keys()
    for name, value in wanted.items():
        wide = value.double()
        difference = (got[name] - wide).abs().max() / wide.abs().max().clamp(min=1e-300)
        assert float(difference) <= TOLERANCE, name


def log_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_processes_together_train_what_one_trains(
    place: Path, alone: dict[str, Rows], tmp_path: Path, world: int
) -> None:
    for name in ("images", "pool"):
        (tmp_path / name).symlink_to(place / name)
    done = torchrun(world, WORKERS / "rank_cases.py", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(world)]
    for name, expected in alone.items():
        steps = zip(*(of_rank[name] for of_rank in rows), strict=True)
        assert [[row for part in step for row in part] for step in steps] == expected, name
        found, wanted = (log_of(root / name) for root in (tmp_path / "ranks", place / "alone"))
        for fields in ("steps", "images", "student_temperature"):
            assert [line[fields] for line in found] == [line[fields] for line in wanted], name
        if name == "batchnorm":
            assert all(bool(t.isfinite().all()) for t in tensors(tmp_path / "ranks" / name).values())
            continue
        assert_same_weights(tmp_path / "ranks" / name, place / "alone" / name)
        for field in ("loss", "top1", "top5"):
            assert [line[field] for line in found] == pytest.approx([line[field] for line in wanted]), name


@pytest.mark.skipif(not EVERY_MOMENT, reason="takes minutes: make ranks")
@pytest.mark.parametrize("count", [1, 2, 3] if EVERY_MOMENT else [2])
@pytest.mark.parametrize(("rank", "step"), MOMENTS if EVERY_MOMENT else MOMENTS[:1])
def test_a_killed_process_ends_the_run_and_the_next_start_goes_on(
    place: Path, alone: dict[str, Rows], tmp_path: Path, rank: int, step: int, count: int
) -> None:
    del alone
    words = ["train", place / "pool", "--images", place / "images", "--val", place / "images", "--lr", "0.01"]
    out = tmp_path / "run"
    killed = torchrun(2, WORKERS / "mortal_rank.py", rank, step, *words, *TRAINING, "--out", out)
    assert killed.returncode != 0
    said = [line for line in killed.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1, killed.stderr
    assert "run the same command again" in said[0]
    assert not (out / "student.safetensors").exists()
    again = torchrun(count, WORKERS / "mortal_rank.py", -1, 0, *words, *TRAINING, "--out", out)
    assert again.returncode == 0, again.stderr
    assert_same_weights(out, place / "alone" / "label batches")
    whole = log_of(place / "alone" / "label batches")
    assert [line["images"] for line in log_of(out)] == [line["images"] for line in whole]


@pytest.mark.parametrize(("words", "said", "code"), MISTAKES if EVERY_MOMENT else MISTAKES[:1])
def test_what_is_wrong_with_a_command_is_said_by_one_process(
    place: Path, words: list[str], said: str, code: int
) -> None:
    command = ["train", place / "pool", "--images", place / "images"]
    command += [place / word if word.startswith("images") else word for word in words]
    done = torchrun(2, "-m", "lpld_cli", *command)
    assert done.returncode != 0
    assert done.stderr.count(said) == 1, done.stderr
    assert re.search(rf"exitcode *: {code} ", done.stderr)


def process_of(launcher: int, rank: int) -> int | None:
    """Return the number of the process of a rank that a launcher has started, if it is there."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == launcher and b"\0RANK=%d\0" % rank in (entry / "environ").read_bytes():
                    return int(entry.name)
            except (OSError, ValueError):
                continue
    return None


def started(place: Path, out: Path, settings: TrainSettings) -> subprocess.Popen[str]:
    """Return ``torchrun ... train`` of two processes when it has saved its first epoch."""
    words = (*launcher(2), "-m", "lpld_cli", "train", place / "pool", "--images", place / "images")
    recipe = ("--out", out, "--student", settings.student, "--epochs", settings.epochs)
    process = subprocess.Popen(
        [str(word) for word in (*words, *recipe)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # The second line is written when the first epoch is saved.
    while not (out / "log.jsonl").exists() or len(log_of(out)) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return process


def test_processes_end_when_their_launcher_is_killed(place: Path, tmp_path: Path) -> None:
    process = started(place, tmp_path / "run", replace(CASES["label batches"], epochs=100_000))
    victim = process_of(process.pid, 1)
    process.kill()
    process.communicate(timeout=200)
    end = time.monotonic() + 100
    while Path(f"/proc/{victim}").exists():
        assert time.monotonic() < end, "a process has outlived its launcher"
        time.sleep(0.1)


@pytest.mark.parametrize("alone", [True, False])
def test_one_of_several_ends_without_tidying_up(alone: bool) -> None:
    """Torch keeps gloo's threads of a parallel model, and Python's ending may abort on them."""
    code = (
        "import atexit, sys\n"
        "from lpld_core.train.ranks import leave\n"
        "atexit.register(print, 'tidied')\n"
        "print('said', end='')\n"
        "leave(3)\n"
    )
    ranks = {} if alone else {"RANK": "0", "WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment(), **ranks},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "saidtidied\n" if alone else "said"), done.stderr
