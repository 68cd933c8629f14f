"""The commands that are disturbed: what each starts from and how it is run."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import uuid
from pathlib import Path

from tests.factories import grow_pool, make_batches, make_header, make_images, write_pool
from tests.trust.kills.harness import Command

CLASSES = 10
ROWS = 8


def run_cli(*words: object) -> None:
    """Run a command line in this process; errors come as exceptions."""
    from lpld_cli.main import group

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        group.main([str(word) for word in words], standalone_mode=False)


def save_at_every_chance() -> None:
    """Make unfinished work safe whenever there is some: every half minute, or in full shards, is too rare."""
    from lpld_core import unfinished
    from lpld_labels.pool import plan

    vars(plan)["SHARD_BATCHES"] = 1
    unfinished.SAVE_SECONDS = 0.0


def make_pool(source: Path) -> None:
    """Write a pool of six batches."""
    batches = make_batches(2, 3)
    header = make_header(CLASSES, ROWS)
    write_pool(source / "pool", batches, header=header, images=make_images(classes=CLASSES)).close()


def run_prune(source: Path, out: Path) -> None:
    save_at_every_chance()
    run_cli("prune", source / "pool", out, "--ratio", 2)


def start_encoded(source: Path, out: Path) -> None:
    """Start with another pool at this place, of a codec with tables."""
    run_cli("encode", source / "pool", out, "--codec", "klt", "--fidelity", 0.9)


def run_prune_over(source: Path, out: Path) -> None:
    """Replace the pool that is there."""
    save_at_every_chance()
    run_cli("prune", source / "pool", out, "--ratio", 2, "--overwrite")


def run_prune_by(source: Path, out: Path) -> None:
    """Score every batch first."""
    save_at_every_chance()
    run_cli("prune", source / "pool", out, "--ratio", 2, "--by", "confidence", "--prefer", "hard")


def run_prune_budget(source: Path, out: Path) -> None:
    """Keep what fits, by an order in which more batches are not the same ones and some others."""
    save_at_every_chance()
    run_cli("prune", source / "pool", out, "--budget", 24_000, "--by", "confidence", "--prefer", "uniform")


def run_encode(source: Path, out: Path) -> None:
    save_at_every_chance()
    run_cli("encode", source / "pool", out, "--codec", "int8")


def make_wide_pool(source: Path) -> None:
    """Write a pool of six batches of forty classes, for which a basis pays."""
    from dataclasses import replace

    from tests.label_factory import make_logits

    batches = [
        replace(batch, labels=make_logits(32, 40, seed=number))
        for number, batch in enumerate(make_batches(2, 3, rows=32, classes=40))
    ]
    write_pool(source / "pool", batches, images=make_images(classes=40)).close()


def run_encode_budget(source: Path, out: Path) -> None:
    save_at_every_chance()
    run_cli("encode", source / "pool", out, "--codec", "klt", "--budget", 26_000)


def run_plan(source: Path, out: Path) -> None:
    save_at_every_chance()
    run_cli("plan", source / "pool", "--budget", 18_000, "--apply", out)


def start_small(source: Path, out: Path) -> None:
    """Start from a pool that has three of the batches already."""
    del source
    write_pool(out, make_batches(2, 3)[:3], header=make_header(CLASSES, ROWS)).close()


def run_write(source: Path, out: Path) -> None:
    """Add to a pool."""
    del source
    grow_pool(out, make_batches(2, 3))


def run_encode_klt(source: Path, out: Path) -> None:
    """Fit a codec first."""
    save_at_every_chance()
    run_cli("encode", source / "pool", out, "--codec", "klt", "--fidelity", 0.9)


def make_folder(source: Path) -> None:
    from tests.lpld_labels.interop.label_folders import write_epochs, write_images

    write_images(source / "images")
    write_epochs(source / "labels", epochs=2, ids_file=True)


def run_import(source: Path, out: Path) -> None:
    save_at_every_chance()
    run_cli("import", source / "labels", out, "--images", source / "images")


def make_damaged_folder(source: Path) -> None:
    make_folder(source)
    (source / "labels" / "epoch_1" / "batch_1.tar").write_bytes(b"damaged")


def run_import_skip(source: Path, out: Path) -> None:
    save_at_every_chance()
    run_cli("import", source / "labels", out, "--images", source / "images", "--skip-bad")


def run_copy(source: Path, out: Path) -> None:
    run_cli("copy", source / "pool", out)


def run_export(source: Path, out: Path) -> None:
    run_cli("export", source / "pool", out, "--format", "lpld")


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
    from lpld_core.relabel import build as building
    from tests.lpld_core.image_folders import NETWORK, SIDE

    # Shards of one batch, however fast the teacher is.
    building.SHARD_SECONDS = 0.0
    teacher = ("--teacher", NETWORK, "--teacher-weights", "random", "--size", SIDE, "--threads", 1)
    settings = ("--preset", "tiny", "--epochs", 4, "--batch-size", 5, "--seed", 3)
    run_cli("build", source / "images", out, *teacher, *settings, "--ratio", ratio)


def compute() -> None:
    """Get ready to compute: save after every step."""
    import torch

    save_at_every_chance()
    # A forked process cannot start OpenMP's threads again.
    torch.set_num_threads(1)


_TINY = ("--teacher", "tests.lpld_core.networks:tiny_net", "--teacher-weights", "random", "--size", 8)


def run_squeeze(source: Path, out: Path) -> None:
    compute()
    run_cli("squeeze", source / "images", out, *_TINY, "--batch-size", 6, "--threads", 1)


def run_squeeze_train(source: Path, out: Path) -> None:
    """Train the teacher first, two epochs of one step and a half."""
    from tests.lpld_core.image_folders import NETWORK, SIDE

    compute()
    weights = ("--teacher-weights", out.with_name("teacher.safetensors"), "--train-teacher", "--epochs", 2)
    network = ("--teacher", NETWORK, "--size", SIDE, "--threads", 1, *weights)
    run_cli("squeeze", source / "images", out, *network, "--val", source / "images", "--update", "ema")


def make_many_images_to_label(source: Path) -> None:
    """Write images for a batch of 64 and another."""
    from tests.lpld_core.image_folders import write_images

    write_images(source / "images", per_class=30)


def make_statistics(source: Path) -> None:
    from tests.lpld_core.image_folders import write_images

    write_images(source / "images", classes=4, per_class=3)
    run_squeeze(source, source / "statistics.safetensors")


def run_recover(source: Path, out: Path) -> None:
    compute()
    settings = ("--ipc", 2, "--iterations", 4, "--class-group", 2, "--format", "png", "--threads", 1)
    run_cli("recover", out, *_TINY, "--statistics", source / "statistics.safetensors", *settings)


def make_pool_to_train_on(source: Path) -> None:
    make_images_to_label(source)
    _build(source, source / "pool", ratio=1)


def run_train(source: Path, out: Path) -> None:
    from tests.lpld_core.image_folders import NETWORK

    compute()
    recipe = ("--student", NETWORK, "--epochs", 2, "--evaluate-every", 1, "--threads", 1, "--preset", "lpqld")
    folders = ("--images", source / "images", "--val", source / "images", "--out", out)
    run_cli("train", source / "pool", *folders, *recipe)


def forget_seconds(out: Path) -> None:
    """Take out of a student's log what it says of the clock."""
    log = out / "log.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps({**record, "seconds": 0}) + "\n" for record in records))


def make_parts(source: Path) -> None:
    """Write two pools that have no batch in common."""
    for part in range(2):
        write_pool(source / f"part{part}", make_batches(2, 2)[part::2]).close()


def run_merge(source: Path, out: Path) -> None:
    save_at_every_chance()
    run_cli("copy", source / "part0", source / "part1", out)


def make_pool_with_images(source: Path) -> None:
    """Write a pool and its images."""
    from tests.lpld_labels.loader.loader_pools import build, write_images

    build(source / "pool", write_images(source / "images", 12), epochs=2).close()


def pack_in_many_files() -> None:
    """Close packed files after a few images."""
    from lpld_labels.pool import packing

    packing.GROUP_BYTES, packing.FILE_BYTES = 3_000, 6_000


def run_pack(source: Path, out: Path) -> None:
    pack_in_many_files()
    run_cli("copy", source / "pool", out, "--images", source / "images")


def make_packed_pool(source: Path) -> None:
    make_pool_with_images(source)
    run_pack(source, source / "packed")


def run_unpack(source: Path, out: Path) -> None:
    run_cli("copy", source / "packed", out, "--unpack")


def run_prune_packed(source: Path, out: Path) -> None:
    save_at_every_chance()
    run_cli("prune", source / "packed", out, "--ratio", 2)


def run_careless(source: Path, out: Path) -> None:
    """Do everything wrong: errors of no use, and a temporary file that stays."""
    del source
    out.mkdir(exist_ok=True)
    temporary = out / f"temporary{uuid.uuid4().hex}"
    temporary.write_bytes(b"{}")
    temporary.rename(out / "file")


COMMANDS = {
    command.name: command
    for command in (
        Command(name="write", make=make_pool, start=start_small, run=run_write),
        Command(name="prune", make=make_pool, run=run_prune),
        Command(name="prune-over", make=make_pool, start=start_encoded, run=run_prune_over, replaces=True),
        Command(name="prune-by", make=make_pool, run=run_prune_by),
        Command(name="prune-budget", make=make_wide_pool, run=run_prune_budget),
        Command(name="encode", make=make_pool, run=run_encode),
        Command(name="encode-klt", make=make_pool, run=run_encode_klt),
        Command(name="encode-budget", make=make_wide_pool, run=run_encode_budget),
        Command(name="plan", make=make_wide_pool, run=run_plan),
        Command(name="merge", make=make_parts, run=run_merge),
        Command(name="pack", make=make_pool_with_images, run=run_pack),
        Command(name="unpack", make=make_packed_pool, run=run_unpack),
        Command(name="prune-packed", make=make_packed_pool, run=run_prune_packed),
        Command(name="import", make=make_folder, run=run_import),
        Command(name="import-skip", make=make_damaged_folder, run=run_import_skip),
        Command(name="copy", make=make_pool, run=run_copy),
        Command(name="export", make=make_pool, run=run_export),
        Command(name="build", make=make_images_to_label, run=run_build),
        Command(name="build-grow", make=make_grow, start=start_grow, run=run_build),
        Command(name="squeeze", make=make_images_to_label, run=run_squeeze),
        Command(name="squeeze-train", make=make_many_images_to_label, run=run_squeeze_train),
        Command(name="recover", make=make_statistics, run=run_recover),
        Command(name="train", make=make_pool_to_train_on, run=run_train, forget=forget_seconds),
    )
}

CARELESS = Command(name="careless", make=lambda source: None, run=run_careless)
"""Shows that the harness notices."""
