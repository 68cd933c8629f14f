"""The commands that are disturbed: what each starts from and how it is run."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path

from tests.factories import make_batches, make_header, make_images, write_pool
from tests.kills.harness import Command

CLASSES = 10
ROWS = 8


def run_cli(*words: object) -> None:
    """Run a command line in this process; errors come as exceptions."""
    from lpld_cli.main import group

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        group.main([str(word) for word in words], standalone_mode=False)


def seal_every_batch() -> None:
    """Seal each batch on its own, so that commits have something to merge."""
    from lpld_labels import PoolWriter

    defaults = PoolWriter.__init__.__kwdefaults__
    defaults["seal_seconds"] = 0.0


def make_pool(source: Path) -> None:
    """Write a pool of nine batches, one of them incomplete."""
    batches = make_batches(3, 3)
    header = make_header(CLASSES, ROWS)
    write_pool(source / "pool", batches, header=header, images=make_images(classes=CLASSES)).close()


def run_prune(source: Path, out: Path) -> None:
    seal_every_batch()
    run_cli("prune", source / "pool", out, "--ratio", 2)


def run_prune_budget(source: Path, out: Path) -> None:
    seal_every_batch()
    sizes = [entry["bytes"] for entry in json.loads((source / "pool" / "pool.json").read_bytes())["files"]]
    run_cli("prune", source / "pool", out, "--budget", int(sum(sizes) * 0.8))


def run_encode(source: Path, out: Path) -> None:
    seal_every_batch()
    run_cli("encode", source / "pool", out, "--codec", "int8")


def run_encode_klt(source: Path, out: Path) -> None:
    run_cli("encode", source / "pool", out, "--codec", "klt", "--fidelity", 0.9)


def make_folder(source: Path) -> None:
    from tests.lpld_labels.foreign.importers.label_folders import write_epochs, write_images

    write_images(source / "images")
    write_epochs(source / "labels", epochs=2, ids_file=True)


def run_import(source: Path, out: Path) -> None:
    seal_every_batch()
    run_cli("import", source / "labels", out, "--images", source / "images")


def make_damaged_folder(source: Path) -> None:
    make_folder(source)
    (source / "labels" / "epoch_1" / "batch_1.tar").write_bytes(b"damaged")


def run_import_skip(source: Path, out: Path) -> None:
    seal_every_batch()
    run_cli("import", source / "labels", out, "--images", source / "images", "--skip-bad")


def make_images_to_label(source: Path) -> None:
    from tests.lpld_core.image_folders import write_images

    write_images(source / "images")


def run_build(source: Path, out: Path) -> None:
    _build(source, out, ratio=4)


def start_grow(source: Path, out: Path) -> None:
    """Start from the pool that `make` built."""
    shutil.copytree(source / "pool", out)


def make_grow(source: Path) -> None:
    make_images_to_label(source)
    _build(source, source / "pool", ratio=12)


def _build(source: Path, out: Path, *, ratio: int) -> None:
    from tests.lpld_core.image_folders import NETWORK, SIDE

    teacher = ("--teacher", NETWORK, "--teacher-weights", "random", "--size", SIDE, "--threads", 1)
    settings = ("--preset", "tiny", "--epochs", 4, "--batch-size", 5, "--seed", 3, "--seal-seconds", 0)
    run_cli("build", source / "images", out, *teacher, *settings, "--ratio", ratio)


COMMANDS = {
    command.name: command
    for command in (
        Command(name="prune", make=make_pool, run=run_prune),
        Command(name="prune-budget", make=make_pool, run=run_prune_budget),
        Command(name="encode", make=make_pool, run=run_encode),
        Command(name="encode-klt", make=make_pool, run=run_encode_klt),
        Command(name="import", make=make_folder, run=run_import),
        Command(name="import-skip", make=make_damaged_folder, run=run_import_skip),
        Command(name="build", make=make_images_to_label, run=run_build),
        Command(name="build-grow", make=make_grow, run=run_build, start=start_grow),
    )
}
