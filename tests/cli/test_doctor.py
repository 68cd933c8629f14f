"""`doctor`: what it checks, what it measures, and how it fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from lpld_core import doctor
from lpld_labels.render.device import DeviceReplay
from tests.cli.build_runs import TEACHER, Cli, facts, one_line_error, passed
from tests.factories import write_pool
from tests.lpld_core.image_folders import NETWORK

NET = [*TEACHER[:-2], "--device", "cpu"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.setattr(doctor, "SECONDS", 0.05)


def test_a_healthy_machine(cli: Cli) -> None:
    found = facts(cli("doctor", "--device", "cpu", "--json"))
    assert set(found) == {*("versions", "devices", "settings", "checks", "failed", "images_per_second")}
    assert set(found["versions"]) == {"python", "cuda", "driver", *doctor.PACKAGES}
    assert found["versions"]["torch"] == torch.__version__
    assert set(found["devices"]) == {"cpu", "cores", "threads", "memory_bytes", "gpus"}
    assert found["settings"]["device"] == "cpu"
    assert list(found["checks"]) == ["read", "replay", "labels", "teacher", "speed"]
    assert not any(text.startswith("skipped") for text in found["checks"].values())
    assert found["failed"] is None
    speeds = found["images_per_second"]
    slower = min(("loader", "network"), key=lambda name: speeds[name])
    assert found["checks"]["speed"].startswith(f"the {slower} is the bottleneck: {speeds[slower]:,} images/s")
    assert speeds["both"] > 0


def test_a_pool_with_and_without_its_teacher(cli: Cli, built: Path, images: Path) -> None:
    words = ("doctor", built, "--images", images, "--student", NETWORK, "--batch-size", 5)
    shown = passed(cli(*words, *NET)).stdout
    assert "labelled again" in shown
    assert "bottleneck" in shown
    found = facts(cli(*words, "--device", "cpu", "--workers", 1, "--replay", "device", "--json"))
    assert found["checks"]["teacher"] == "skipped: no --teacher is given"
    assert found["settings"] == {
        "device": "cpu",
        "student": NETWORK,
        "batch_size": 5,
        "replay": "device",
        "workers": 1,
        "amp": "off",
    }


def test_it_names_the_check_that_fails(
    cli: Cli, built: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ("--images", images, "--device", "cpu")
    one_line_error(cli("doctor", tmp_path / "none", *here), "check 'read' failed", "not a label pool")
    write_pool(tmp_path / "empty", []).close()
    one_line_error(cli("doctor", tmp_path / "empty", *here), "check 'read' failed", "contains no batches")
    wrong = cli("doctor", built, *here, "--teacher", "small-resnet10:width=9", *NET[2:])
    one_line_error(wrong, "check 'teacher' failed", "small-resnet10:width=9", "is not the pool's")
    other = cli("doctor", built, *here, "--teacher", "resnet81", "--json")
    one_line_error(other, "check 'teacher' failed", "unknown network")
    found = json.loads(other.stdout)
    assert (found["failed"], found["images_per_second"]) == ("teacher", {})
    assert "speed" not in found["checks"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "equal", lambda *_: False)
        one_line_error(cli("doctor", built, *here), "check 'replay' failed", "differ from those of the CPU")
    (file,) = (shutil.copytree(built, tmp_path / "damaged") / "labels").iterdir()
    file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
    one_line_error(cli("doctor", tmp_path / "damaged", *here), "check 'read' failed", file.name)

    def no_memory(*_: object) -> None:
        raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(DeviceReplay, "render", no_memory)
    one_line_error(cli("doctor", built, *here), "check 'replay' failed: CUDA error: out of memory")
