"""The commands that are disturbed: what each starts from and how it is run."""

import contextlib
import io
import json
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.factories import grow_pool, make_batches, make_header, make_images, write_pool
from tests.label_factory import make_logits
from tests.lpld_core.image_folders import NETWORK, SIDE
from tests.lpld_core.image_folders import write_images as write_image_folder
from tests.trust.kills.harness import Command

CLASSES, ROWS = 10, 8
Run = Callable[[Path, Path], None]


def run_cli(*words: object) -> None:
    """Run a command line in this process; errors come as exceptions."""
    from lpld_cli.main import group

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        group.main([str(word) for word in words], standalone_mode=False)


def save_at_every_chance() -> None:
    """Save unfinished work whenever there is some: every half minute, or in full shards, is too rare."""
    from lpld_core import unfinished
    from lpld_labels.pool import plan

    vars(plan)["SHARD_BATCHES"] = 1
    unfinished.SAVE_SECONDS = 0.0


def compute() -> None:
    """Prepare for computing: save after every step."""
    import torch

    save_at_every_chance()
    # A forked process cannot start OpenMP's threads again.
    torch.set_num_threads(1)


def cli(line: str, ready: Callable[[], None] | None = save_at_every_chance) -> Run:
    """Return a run of a command line, in which {source} and {out} are places."""

    def run(source: Path, out: Path) -> None:
        if ready is not None:
            ready()
        run_cli(*(word.format(source=source, out=out) for word in line.split()))

    return run


def make_pool(source: Path) -> None:
    """Write a pool of six batches."""
    images = make_images(classes=CLASSES)
    write_pool(source / "pool", make_batches(2, 3), header=make_header(CLASSES, ROWS), images=images).close()


def make_wide_pool(source: Path) -> None:
    """Write a pool of six batches of forty classes, for which a basis pays."""
    batches = [
        replace(batch, labels=make_logits(32, 40, seed=number))
        for number, batch in enumerate(make_batches(2, 3, rows=32, classes=40))
    ]
    write_pool(source / "pool", batches, images=make_images(classes=40)).close()


def make_parts(source: Path) -> None:
    """Write two pools that have no batch in common."""
    for part in range(2):
        write_pool(source / f"part{part}", make_batches(2, 2)[part::2]).close()


def start_small(source: Path, out: Path) -> None:
    """Start from a pool that has three of the batches already."""
    del source
    write_pool(out, make_batches(2, 3)[:3], header=make_header(CLASSES, ROWS)).close()


def run_write(source: Path, out: Path) -> None:
    """Add to a pool."""
    del source
    grow_pool(out, make_batches(2, 3))


def make_pool_with_images(source: Path) -> None:
    from tests.lpld_labels.loader.loader_pools import build, write_images

    build(source / "pool", write_images(source / "images", 12), epochs=2).close()


def pack_in_many_files() -> None:
    """Close packed files after a few images."""
    from lpld_labels.pool import packing

    packing.GROUP_BYTES, packing.FILE_BYTES = 3_000, 6_000


run_pack = cli("copy {source}/pool {out} --images {source}/images", pack_in_many_files)


def make_packed_pool(source: Path) -> None:
    make_pool_with_images(source)
    run_pack(source, source / "packed")


def make_folder(source: Path) -> None:
    from tests.lpld_labels.interop.label_folders import write_epochs, write_images

    write_images(source / "images")
    write_epochs(source / "labels", epochs=2, ids_file=True)


def make_damaged_folder(source: Path) -> None:
    make_folder(source)
    (source / "labels" / "epoch_1" / "batch_1.tar").write_bytes(b"damaged")


def make_images_to_label(source: Path) -> None:
    write_image_folder(source / "images")


def make_many_images_to_label(source: Path) -> None:
    """Write images for a batch of 64 and another."""
    write_image_folder(source / "images", per_class=30)


def build(ratio: int) -> Run:
    def ready() -> None:
        from lpld_core.relabel import build as building

        # Shards of one batch, however fast the teacher is.
        building.SHARD_SECONDS = 0.0

    teacher = f"--teacher {NETWORK} --teacher-weights random --size {SIDE} --threads 1"
    settings = f"--preset tiny --epochs 4 --batch-size 5 --seed 3 --ratio {ratio}"
    return cli(f"build {{source}}/images {{out}} {teacher} {settings}", ready)


def make_built(ratio: int) -> Callable[[Path], None]:
    def make(source: Path) -> None:
        make_images_to_label(source)
        build(ratio)(source, source / "pool")

    return make


def start_grow(source: Path, out: Path) -> None:
    """Start from the pool that `make` built."""
    shutil.copytree(source / "pool", out)


TINY = "--teacher tests.lpld_core.networks:tiny_net --teacher-weights random --size 8"
run_squeeze = cli(f"squeeze {{source}}/images {{out}} {TINY} --batch-size 6 --threads 1", compute)


def run_squeeze_train(source: Path, out: Path) -> None:
    """Train the teacher first, two epochs of one step and a half."""
    weights = f"--teacher-weights {out.with_name('teacher.safetensors')} --train-teacher --epochs 2"
    network = f"--teacher {NETWORK} --size {SIDE} --threads 1 {weights}"
    cli(f"squeeze {{source}}/images {{out}} {network} --val {{source}}/images --update ema", compute)(
        source, out
    )


def make_statistics(source: Path) -> None:
    write_image_folder(source / "images", classes=4, per_class=3)
    run_squeeze(source, source / "statistics.safetensors")


run_recover = cli(
    f"recover {{out}} {TINY} --statistics {{source}}/statistics.safetensors "
    "--ipc 2 --iterations 4 --class-group 2 --format png --threads 1",
    compute,
)
run_train = cli(
    "train {source}/pool --images {source}/images --val {source}/images --out {out} "
    f"--student {NETWORK} --epochs 2 --evaluate-every 1 --threads 1 --preset lpqld",
    compute,
)


def forget_seconds(out: Path) -> None:
    """Take out of a student's log what it says of the clock."""
    log = out / "log.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps({**record, "seconds": 0}) + "\n" for record in records))


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
        Command("write", make_pool, run_write, start=start_small),
        Command("prune", make_pool, cli("prune {source}/pool {out} --ratio 2")),
        # Over a pool of a codec with tables.
        Command(
            "prune-over",
            make_pool,
            cli("prune {source}/pool {out} --ratio 2 --overwrite"),
            start=cli("encode {source}/pool {out} --codec klt --fidelity 0.9", None),
            replaces=True,
        ),
        # Scores every batch first.
        Command(
            "prune-by", make_pool, cli("prune {source}/pool {out} --ratio 2 --by confidence --prefer hard")
        ),
        # By an order in which more batches are not the same ones and some others.
        Command(
            "prune-budget",
            make_wide_pool,
            cli("prune {source}/pool {out} --budget 24000 --by confidence --prefer uniform"),
        ),
        Command("encode", make_pool, cli("encode {source}/pool {out} --codec int8")),
        Command("encode-klt", make_pool, cli("encode {source}/pool {out} --codec klt --fidelity 0.9")),
        Command(
            "encode-budget", make_wide_pool, cli("encode {source}/pool {out} --codec klt --budget 26000")
        ),
        Command("plan", make_wide_pool, cli("plan {source}/pool --budget 18000 --apply {out}")),
        Command("merge", make_parts, cli("copy {source}/part0 {source}/part1 {out}")),
        Command("pack", make_pool_with_images, run_pack),
        Command("unpack", make_packed_pool, cli("copy {source}/packed {out} --unpack", None)),
        Command("prune-packed", make_packed_pool, cli("prune {source}/packed {out} --ratio 2")),
        Command("import", make_folder, cli("import {source}/labels {out} --images {source}/images")),
        Command(
            "import-skip",
            make_damaged_folder,
            cli("import {source}/labels {out} --images {source}/images --skip-bad"),
        ),
        Command("copy", make_pool, cli("copy {source}/pool {out}", None)),
        Command("export", make_pool, cli("export {source}/pool {out} --format lpld", None)),
        Command("build", make_images_to_label, build(ratio=4)),
        Command("build-grow", make_built(ratio=12), build(ratio=4), start=start_grow),
        Command("squeeze", make_images_to_label, run_squeeze),
        Command("squeeze-train", make_many_images_to_label, run_squeeze_train),
        Command("recover", make_statistics, run_recover),
        Command("train", make_built(ratio=1), run_train, forget=forget_seconds),
    )
}

CARELESS = Command("careless", lambda source: None, run_careless)
"""Shows that the harness notices."""
