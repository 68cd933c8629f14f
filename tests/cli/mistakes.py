"""Mistakes people make, by command: what they type, the exit code and what the answer must contain.

Run in a directory with the files that `make_place` writes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lpld_labels import LineageStep, PoolWriter, Teacher
from lpld_labels.replay.image_source import find_images
from lpld_labels.rewriting.pack import pack_pool
from tests.factories import make_batches, make_header, make_images, write_pool
from tests.lpld_core.image_folders import write_images
from tests.lpld_labels.foreign.importers.label_folders import write_epochs
from tests.lpld_labels.foreign.importers.label_folders import write_images as write_labelled_images
from tests.lpld_labels.loader.loader_pools import build
from tests.lpld_labels.loader.loader_pools import write_images as write_pictures

NET = "--teacher small-resnet10:width=8,stem_stride=2 --teacher-weights random --size 16"
TINY = (
    "--teacher tests.lpld_core.networks:tiny_net --teacher-weights random --size 8 "
    "--ipc 1 --method sre2l --iterations 1"
)
RECOVER = f"{NET} --ipc 1 --method sre2l --iterations 1"


def make_place(root: Path) -> None:
    """Write pools, image folders, a label folder and things that are none of these."""
    batches = make_batches(2, 4)
    write_pool(root / "pool", batches).close()
    write_pool(root / "int8", batches, codec="int8").close()
    write_pool(root / "part0", batches[::2]).close()
    write_pool(root / "part1", batches[1::2]).close()
    write_pool(root / "others", make_batches(1, 2, classes=20), images=make_images(classes=20)).close()
    header = replace(make_header(), seed=5)
    write_pool(root / "seed5", batches[:1], header=header).close()
    write_images(root / "images")
    write_images(root / "two", classes=2)
    write_labelled_images(root / "labelled")
    write_epochs(root / "labels", epochs=1, ids_file=True)
    write_epochs(root / "noids", epochs=1)
    write_pool(root / "edited", batches[:1]).close()
    (root / "edited" / "README.md").write_text("my own words")
    _built_pool(root / "built")
    pictures = write_pictures(root / "pictures", 12)
    with build(root / "bare", pictures) as bare:
        pack_pool(bare, root / "packed", find_images(bare, pictures))
    (root / "empty").mkdir()
    (root / "full").mkdir()
    (root / "full" / "thesis.txt").write_text("years of work")
    (root / "file").write_text("not what you think")
    (root / "broken").mkdir()
    (root / "broken" / "pool.json").write_text("{")
    (root / "damaged" / "class0").mkdir(parents=True)
    (root / "damaged" / "class0" / "a.png").write_bytes(b"no image")


def _built_pool(path: Path) -> None:
    """Write a pool that says it was built."""
    teacher = Teacher(name=NET.split()[1], mean=(0.5,) * 3, std=(0.2,) * 3)
    header = replace(make_header(classes=3), teachers=(teacher,))
    images = make_images(classes=3)
    step = LineageStep(operation="build", parameters={"epochs": 2, "ratio": 1.0, "seed": 0})
    with PoolWriter(path, header=header, images=images) as writer:
        writer.extend(make_batches(1, 1, classes=3, images=images))
        writer.commit(lineage=(step,))


MISTAKES: list[tuple[str, int, str]] = [
    # the group
    ("prnue pool out --ratio 2", 2, "Did you mean prune?"),
    ("--colour inspect pool", 2, "No such option"),
    ("compress pool", 2, "No such command"),
    # inspect
    ("inspect", 2, "Missing argument 'POOL'"),
    ("inspect nowhere", 1, "not a label pool"),
    ("inspect images", 1, "not a label pool"),
    ("inspect file", 2, "is a file"),
    ("inspect broken", 1, "pool.json"),
    ("inspect pool pool", 2, "unexpected extra argument"),
    ("inspect pool --jsn", 2, "Did you mean '--json'"),
    ("inspect s4://bucket/pool", 1, "s4://bucket/pool"),
    # report
    ("report pool", 2, "Missing option '--out'"),
    ("report nowhere --out new.html", 1, "not a label pool"),
    ("report pool --out empty", 2, "is a directory"),
    ("report pool --out new.html --images nowhere", 1, "nowhere"),
    ("report pool --out new.html --against nowhere", 1, "not a label pool"),
    ("report pool --out new.html --class-names nowhere", 1, "cannot read class names"),
    ("report pool --out new.html --runs empty", 1, "not a training run"),
    ("report pool --out nowhere/new.html", 1, "nowhere"),
    # compare
    ("compare pool", 2, "give two pools or more"),
    ("compare pool nowhere", 1, "not a label pool"),
    ("compare pool part0 --out empty", 2, "is a directory"),
    ("compare pool part0 --runs empty", 1, "not a training run"),
    # verify
    ("verify", 2, "Missing argument 'POOL'"),
    ("verify nowhere", 1, "not a label pool"),
    ("verify pool --images images", 2, "--images goes with --teacher"),
    (
        f"verify pool {NET}",
        1,
        "the pool does not carry its images; give the labelled image folder (--images)",
    ),
    (f"verify pool --images images {NET} --device abacus", 2, "'abacus' is not usable here"),
    (f"verify pool --images images {NET} --batches 0", 2, "--batches"),
    (f"verify pool --images images {NET}", 1, "expected --size 32, or none, got 16"),
    (f"verify pool --images nowhere {NET.replace('16', '32')}", 1, "nowhere"),
    ("verify pool --images images --teacher resnet1812", 1, "resnet1812"),
    ("verify pool --images images --teacher resnet18 --mean 1,2", 2, "three numbers"),
    ("verify pool --tolerance -1", 2, "--tolerance"),
    # prune
    ("prune pool", 2, "Missing argument 'OUT'"),
    ("prune pool out", 2, "give either --ratio or --budget"),
    ("prune pool out --ratio 2 --budget 1MB", 2, "give either --ratio or --budget"),
    ("prune nowhere out --ratio 2", 1, "not a label pool"),
    ("prune pool pool --ratio 2", 1, "the output is the same as an input"),
    ("prune pool pool/sub --ratio 2", 1, "the output is inside an input"),
    ("prune pool . --ratio 2", 1, "the output is around an input"),
    ("prune pool part0 --ratio 2", 1, "--overwrite"),
    ("prune pool full --ratio 2", 1, "something is already here"),
    ("prune pool full --ratio 2 --overwrite", 1, "no label pool"),
    ("prune pool images --ratio 2 --overwrite", 1, "no label pool"),
    ("prune pool file --ratio 2", 1, "something is already here"),
    ("prune pool file --ratio 2 --overwrite", 1, "no label pool"),
    ("prune pool file/out --ratio 2", 1, "file"),
    ("prune pool part0 --ratio 99 --overwrite", 1, "ratio is too large"),
    ("prune pool out --ratio 0", 1, "ratio is too small"),
    ("prune pool out --ratio many", 2, "'many' is not a valid float"),
    ("prune pool out --ratio 99", 1, "ratio is too large"),
    ("prune pool out --ratio nan", 1, "ratio"),
    ("prune pool out --budget 30Q", 2, "write 300MB, 30K, 1 GiB, 4000 (bytes), 10% or 0.5x (of the pool)"),
    ("prune pool out --budget -5", 2, "-5"),
    ("prune pool out --budget 1kB", 1, "budget is too small"),
    ("prune pool out --budget 1%", 1, "budget is too small"),
    ("prune pool out --budget 1x-images", 2, "is not a size"),
    ("prune pool out --ratio 2 --by luck", 2, "'luck' is not one of"),
    ("prune pool out --ratio 2 --by diff", 2, "--by METRIC needs --prefer"),
    ("prune pool out --ratio 2 --prefer hard", 2, "--prefer goes with --by METRIC"),
    ("prune pool out --ratio 2 --drop-easy 100%", 2, "not below 100%"),
    ("prune pool out --ratio 2 --drop-easy half", 2, "10% or 0.1"),
    ("prune pool out --ratio 2 --drop-easy 60% --drop-hard 60%", 1, "drop"),
    ("prune pool out --ratio 2 --seed -1", 2, "--seed"),
    ("prune pool out --ratio 2 --force", 2, "No such option"),
    # encode
    ("encode pool out", 2, "give --codec, or --views alone"),
    ("encode pool out --views none", 2, "--views"),
    ("encode pool full --views stored", 1, "something is already here"),
    ("encode pool full --views stored --overwrite", 1, "no label pool"),
    ("encode pool pool --views stored", 1, "the same as an input"),
    ("encode pool out --views stored --temperature 4", 2, "give --codec, or --views alone"),
    ("encode pool out --codec KLT", 1, "did you mean klt?"),
    ("encode pool out --codec zip", 1, "klt"),
    ("encode pool out --codec topk:11", 1, "top"),
    ("encode pool out --codec topk:0", 1, "topk"),
    ("encode pool out --codec topk", 1, "topk"),
    ("encode pool out --codec int8 --fidelity 0.9", 2, "--fidelity goes with --codec klt"),
    ("encode pool out --codec klt --fidelity 2", 1, "fidelity"),
    ("encode pool out --codec klt --fidelity 0.9 --step 1", 2, "give only one of"),
    ("encode pool out --codec klt --step 1 --temperature 2", 2, "makes no difference"),
    ("encode pool out --codec klt --step 0", 1, "step"),
    ("encode pool out --codec klt --temperature 0", 1, "temperature"),
    ("encode pool out --codec klt --budget 1kB", 1, "budget is too small"),
    ("encode pool out --codec int8 -j 0", 2, "--jobs"),
    ("encode int8 out --codec int4", 1, "--from-lossy"),
    ("encode pool pool --codec int8", 1, "the output is the same as an input"),
    ("encode pool pool/sub --codec int8", 1, "the output is inside an input"),
    ("encode pool part0 --codec int8", 1, "--overwrite"),
    ("encode pool full --codec int8 --overwrite", 1, "no label pool"),
    ("encode pool part0 --codec topk:11 --overwrite", 1, "top"),
    ("encode pool part0 --codec klt --budget 1kB --overwrite", 1, "budget is too small"),
    ("encode nowhere out --codec int8", 1, "not a label pool"),
    # plan
    ("plan pool", 2, "Missing option '--budget'"),
    ("plan pool --budget 1x-images", 2, "needs --images"),
    ("plan pool --budget 1x-images --images images", 1, "image is missing"),
    ("plan pool --budget some", 2, "1x-images (of the images)"),
    ("plan pool --budget 1MB --min-fidelity 1.5", 2, "between 0 and 1"),
    ("plan pool --budget 1MB --temperature -1", 2, "> 0"),
    ("plan pool --budget 1MB --codec zip", 1, "unknown codec"),
    ("plan pool --budget 10", 1, "budget is too small"),
    ("plan pool --budget 1MB --overwrite", 2, "--overwrite goes with --apply"),
    ("plan pool --budget 1MB --apply pool", 1, "the output is the same as an input"),
    ("plan pool --budget 1MB --apply full", 1, "something is already here"),
    ("plan int8 --budget 1MB", 1, "--from-lossy"),
    # card
    ("card", 2, "Missing argument 'POOL'"),
    ("card nowhere", 1, "not a label pool"),
    ("card file", 2, "is a file"),
    ("card pool --license 'a: b'", 1, "this is no name of a licence"),
    ("card edited", 1, "this card was edited"),
    ("card pool --out full/thesis.txt", 1, "somebody else wrote it"),
    ("card pool --out nowhere/card.md", 1, "nowhere"),
    ("card pool --licence mit", 2, "Did you mean '--license'"),
    ("prune pool edited --ratio 2 --overwrite", 1, "no label pool"),
    # recipe
    ("recipe", 2, "Missing argument 'POOL'"),
    ("recipe nowhere", 1, "not a label pool"),
    ("recipe file", 1, "file"),
    ("recipe pool --teacher-weights a --teacher-weights b", 2, "once per teacher (1 times), got 2"),
    ("recipe pool --out", 2, "--out"),
    # pack
    ("pack bare", 2, "Missing argument 'OUT'"),
    ("pack bare out", 1, "the pool does not carry its images"),
    ("pack nowhere out --images pictures", 1, "not a label pool"),
    ("pack bare out --images nowhere", 1, "image folder does not exist"),
    ("pack bare out --images images", 1, "image 0 of the labelled images is missing"),
    ("pack bare bare --images pictures", 1, "the output is the same as an input"),
    ("pack bare pictures --images pictures", 1, "something is already here"),
    ("pack bare pool --images pictures", 1, "--overwrite"),
    ("pack bare full --images pictures --overwrite", 1, "no label pool"),
    ("pack bare out --image pictures", 2, "Did you mean '--images'"),
    ("pack bare file/out --images pictures", 1, "file"),
    # unpack
    ("copy pool", 2, "Missing argument 'OUT'"),
    ("copy nowhere out", 1, "not a label pool"),
    ("copy pool full", 1, "something is already here"),
    ("copy pool pool", 1, "the output is the same as an input"),
    ("copy pool pool/copy", 1, "the output is inside an input"),
    ("copy pool out --ratio 0", 1, "ratio"),
    ("copy pool out --codec KTL", 1, "klt"),
    ("copy int8 out --codec int4", 1, "--from-lossy"),
    ("unpack packed", 2, "Missing argument 'FOLDER'"),
    ("unpack bare out", 1, "the pool does not carry its images"),
    ("unpack nowhere out", 1, "not a label pool"),
    ("unpack packed packed", 1, "the output is the same as an input"),
    ("unpack packed packed/images", 1, "the output is inside an input"),
    ("unpack packed full", 1, "something is already here"),
    ("unpack packed full --overwrite", 1, "--overwrite replaces only what we wrote"),
    ("unpack packed pictures", 1, "something is already here"),
    ("unpack packed file", 1, "something is already here"),
    ("unpack packed file/out", 1, "file"),
    # merge
    ("merge", 2, "Missing argument"),
    ("merge pool out", 2, "two pools or more"),
    ("merge pool part0 out", 1, "two pools hold"),
    ("merge part0 others out", 1, "cannot be merged"),
    ("merge part0 seed5 out", 1, "field 'seed' differs"),
    ("merge part0 nowhere out", 1, "not a label pool"),
    ("merge part0 part1 part1", 1, "the output is the same as an input"),
    ("merge part0 part1 part1/sub", 1, "the output is inside an input"),
    ("merge part0 part1 int8", 1, "--overwrite"),
    ("merge part0 part1 full --overwrite", 1, "no label pool"),
    # import
    ("import labels out", 2, "Missing option '--images'"),
    ("import nowhere out --images labelled", 1, "label folder does not exist"),
    ("import labels out --images nowhere", 1, "nowhere"),
    ("import labels out --images empty", 1, "empty"),
    ("import labels out --images two", 1, "images"),
    ("import empty out --images labelled", 1, "empty"),
    ("import labels out --images labelled --format zip", 2, "'zip' is not one of"),
    ("import labels out --images labelled --format fkd", 1, "label"),
    ("import labels out --images labelled --mean 1,1,1", 2, "--mean and --std go together"),
    ("import labels out --images labelled --mean a,b,c --std 1,1,1", 2, "three numbers"),
    ("import labels out --images labelled -j 0", 2, "--jobs"),
    ("import labels labels/pool --images labelled", 1, "the output is inside an input"),
    ("import labels labelled/pool --images labelled", 1, "the output is inside an input"),
    ("import labels pool --images labelled", 1, "--overwrite"),
    ("import labels full --images labelled --overwrite", 1, "no label pool"),
    # export
    ("export pool out", 2, "Missing option '--format'"),
    ("export pool out --format zip", 2, "'zip' is not one of"),
    ("export nowhere out --format lpld", 1, "not a label pool"),
    ("export pool out --format sre2l", 1, "--format lpld"),
    ("export pool out --format lpqld --top-k 99", 1, "--top-k"),
    ("export pool out --format lpld --top-k 3", 2, "--top-k goes with --format lpqld or fkd"),
    ("export pool out --format fkd --drop-incomplete", 2, "goes with --format lpld"),
    ("export pool full --format lpld", 1, "something is already here"),
    ("export pool full --format lpld --overwrite", 1, "no label file"),
    ("export pool pool/sub --format lpld", 1, "the output is inside an input"),
    ("export pool file --format lpld --overwrite", 1, "no label file"),
    # squeeze
    (f"squeeze nowhere out.st {NET}", 1, "nowhere"),
    (f"squeeze images/class0 out.st {NET}", 1, "class0"),
    ("squeeze images out.st", 2, "Missing option '--teacher'"),
    (f"squeeze images file {NET}", 1, "--overwrite"),
    (f"squeeze images file {NET} --overwrite", 1, "file"),
    (f"squeeze images full {NET}", 1, "full"),
    (f"squeeze images images/out.st {NET}", 1, "the output is inside an input"),
    (f"squeeze images out.st {NET} --epochs 2", 2, "go with --train-teacher"),
    (f"squeeze images out.st {NET} --train-teacher", 2, "--train-teacher needs --teacher-weights FILE"),
    ("squeeze images out.st --teacher small-resnet10 --teacher-weights nowhere.st", 1, "nowhere.st"),
    ("squeeze images out.st --teacher small-resnet10 --teacher-weights file", 1, "file"),
    (f"squeeze images out.st {NET} --momentum 1", 2, "--momentum"),
    (f"squeeze damaged out.st {NET}", 1, "a.png"),
    # recover
    (f"recover out {RECOVER} --method lpld", 2, "needs --statistics FILE"),
    (f"recover out {RECOVER} --method rded", 2, "needs --real"),
    (f"recover out {RECOVER} --statistics-kind class", 2, "no class statistics to match"),
    (f"recover out {NET} --method sre2l", 2, "Missing option '--ipc'"),
    (f"recover out {RECOVER} --method lpld --statistics file", 1, "file"),
    (f"recover full {TINY}", 1, "something is already here"),
    (f"recover images {RECOVER} --real images", 1, "the output is the same as an input"),
    (f"recover images/syn {RECOVER} --real images", 1, "the output is inside an input"),
    (f"recover out {RECOVER} --real images --part 4/3", 2, "expected I/N with 1 <= I <= N"),
    (f"recover out {RECOVER} --real images --part 1/2 --overwrite", 2, "does not go with --part"),
    (f"recover out {RECOVER} --real images --quality 101", 2, "--quality"),
    # analyze
    ("analyze images --real two", 2, "Missing option '--teacher'"),
    (f"analyze nowhere --real images {NET}", 1, "nowhere"),
    (f"analyze images {NET}", 2, "Missing option '--real'"),
    (f"analyze two --real images {NET}", 1, "class"),
    ("analyze images --real images --model resnet18", 2, "No such option"),
    # build
    (f"build images {NET}", 2, "Missing argument 'OUT'"),
    ("build images out --like nowhere", 1, "not a label pool"),
    ("build images out --like pool", 1, "the pool was not labelled by build"),
    ("build images out --like file", 1, "file"),
    ("build images out --like built --preset tiny", 2, "give one of --like and --preset"),
    ("build nowhere out --like built", 1, "image folder does not exist"),
    (
        "build images out --like built --teacher-weights a --teacher-weights b",
        2,
        "once per --teacher (1 times)",
    ),
    ("build images out --like built --teacher-weights nowhere", 1, "nowhere"),
    ("build images out --teacher resnet1812", 1, "resnet1812"),
    (f"build nowhere out {NET}", 1, "nowhere"),
    (f"build empty out {NET}", 1, "empty"),
    (f"build images images {NET}", 1, "the output is the same as an input"),
    (f"build images images/pool {NET}", 1, "the output is inside an input"),
    (f"build images full {NET}", 1, "something is already here"),
    (f"build images full {NET} --overwrite", 1, "no label pool"),
    (f"build images out {NET} --ratio 0.5", 2, "--ratio"),
    (f"build images out {NET} --part 0/2", 2, "expected I/N"),
    (f"build images out {NET} --part 1/2 --overwrite", 2, "does not go with --part"),
    (f"build images out {NET} --crop-scale 1 0.08", 1, "crop"),
    (f"build images out {NET} --cutout 3", 1, "cut"),
    (f"build images out {NET} --codec topk:50", 1, "top"),
    (f"build images out {NET} --codec KLT", 1, "klt"),
    (f"build images out {NET} --mix shake", 2, "'shake' is not one of"),
    (f"build images out {NET} --teacher resnet18", 2, "once per --teacher"),
    (f"build images out {NET} --device abacus", 2, "'abacus' is not usable here"),
    # train
    ("train pool", 1, "the pool does not carry its images; give the labelled image folder (--images)"),
    ("train nowhere --images images", 1, "not a label pool"),
    ("train pool --images nowhere", 1, "nowhere"),
    ("train pool --images images", 1, "image"),
    ("train pool --images images --out images", 1, "the output is the same as an input"),
    ("train pool --images images --out pool/run", 1, "the output is inside an input"),
    ("train pool --images images --sampling batches", 2, "No such option"),
    ("train pool --images images --policy luck", 2, "'luck' is not one of"),
    ("train pool --images images --warmup-epochs -1", 1, "warmup epochs is wrong"),
    ("train pool --images images --student-temperature hot", 2, "'hot'"),
    ("train pool --images images --lr 0", 1, "learning rate is wrong"),
    ("train pool --images images -b 0", 2, "--batch-size"),
    ("train pool --images images --nproc 0", 2, "--nproc"),
    ("train pool --images images --accumulate 0", 2, "--accumulate"),
    ("train pool --images images -j -1", 2, "--workers"),
    ("train pool --images images --ema 1", 1, "ema is wrong"),
    # demo
    ("demo --epochs 0", 2, "--epochs"),
    ("demo --out", 2, "--out"),
]
