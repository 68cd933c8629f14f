"""Every mistake is answered in one line with what to do, and leaves all files as they were.

Of errors of the library there is one a command, and those whose hint names an option.
"""

import shlex
from pathlib import Path

import pytest
from lpld_cli.main import LAZY_COMMANDS

from lpld_labels.render.images import find_images
from lpld_labels.transforms.copy import merge_pools
from tests.cli.build_runs import Cli
from tests.factories import make_batches, write_pool
from tests.lpld_core.image_folders import write_images
from tests.lpld_labels.interop.label_folders import write_epochs
from tests.lpld_labels.interop.label_folders import write_images as write_labelled
from tests.lpld_labels.loader.loader_pools import build
from tests.lpld_labels.loader.loader_pools import write_images as write_pictures

NET = "--teacher small-resnet10:width=8,stem_stride=2 --teacher-weights random --size 16"
FLAT = "--teacher tests.lpld_core.networks:tiny_net_without_batchnorm --teacher-weights random --size 8"
RECOVER = f"{NET} --ipc 1 --method sre2l --iterations 1"

MISTAKES: list[tuple[str, int, str]] = [
    # the group
    ("prnue pool out --ratio 2", 2, "Did you mean 'prune'?"),
    ("--colour inspect pool", 2, "No such option"),
    # inspect
    ("inspect", 2, "Missing argument 'POOL'"),
    ("inspect nowhere", 1, "not a label pool"),
    ("inspect broken", 1, "pool.json"),
    ("inspect pool --jsn", 2, "Did you mean '--json'"),
    ("inspect pool --card --recipe", 2, "not both"),
    ("inspect pool --license mit", 2, "require --card"),
    ("inspect pool --card --license 'a: b'", 1, "invalid licence name"),
    ("inspect edited --card", 1, "this card was edited"),
    ("inspect pool --card full/thesis.txt", 1, "another program wrote it"),
    ("inspect s4://bucket/pool", 1, "s4://bucket/pool"),
    ("inspect https://[::1/pool", 1, "invalid address"),
    ("inspect file:///x%00y", 1, "NUL"),
    ("inspect file://elsewhere/pool", 1, "a remote host"),
    # report
    ("report pool", 2, "Missing option '--out'"),
    ("report pool part0 --out new.html", 2, "--out requires a single pool"),
    ("report pool --out empty", 2, "is a directory"),
    # verify
    ("verify pool --images images", 2, "--images requires --teacher"),
    ("verify pool --size 16", 2, "--size requires --teacher"),
    (
        f"verify pool {NET}",
        1,
        "does not contain its images; give the labelled image folder (--images)",
    ),
    (f"verify pool --images images {NET} --device abacus", 2, "cannot use device 'abacus'"),
    (f"verify pool --images images {NET}", 1, "expected --size 32, or no --size, got 16"),
    # prune
    ("prune pool out", 1, "give either a ratio or a budget"),
    ("prune nowhere out --ratio 2", 1, "not a label pool"),
    ("prune pool pool --ratio 2", 1, "the output is the same as an input"),
    (f"prune pool {'n' * 300} --ratio 2", 1, "name too long"),
    ("prune pool loop --ratio 2", 1, "loop"),
    ("prune pool part0 --ratio 2", 1, "--overwrite"),
    ("prune pool full --ratio 2 --overwrite", 1, "not a label pool"),
    ("prune pool out --ratio nan", 2, "ratio"),
    ("prune pool out --budget 30Q", 2, "write 300MB, 30K, 1 GiB, 4000 (bytes), 10% or 0.5x (of the pool)"),
    ("prune pool out --budget 1kB", 1, "budget is too small"),
    ("prune pool out --ratio 2 --by diff", 1, "by and prefer do not fit together"),
    # encode
    ("encode pool out", 1, "no codec is given"),
    ("encode pool out --codec KLT", 1, "did you mean klt?"),
    ("encode pool out --views drawn", 1, "--views stored"),
    ("encode int8 out --codec int4", 1, "--from-lossy"),
    # plan
    ("plan pool", 2, "Missing option '--budget'"),
    ("plan pool --budget 1x-images", 2, "requires --images"),
    ("plan pool --budget 1x-images --images images", 1, "image is missing"),
    ("plan pool --budget 1MB --overwrite", 2, "--overwrite requires --apply"),
    ("plan pool --budget 1kB --codec int8 --apply out", 1, "too small for even one batch"),
    # copy
    ("copy pool", 2, "Missing argument"),
    ("copy nowhere out", 1, "not a label pool"),
    ("copy pool pool/copy", 1, "the output is inside an input"),
    ("copy bare out --image pictures", 2, "Did you mean '--images'"),
    ("copy bare out --images images", 1, "image 0 of the labelled images is missing"),
    ("copy bare pictures/packed --images pictures", 1, "choose a path beside the input"),
    ("copy bare out --unpack", 1, "the pool does not contain its images"),
    ("copy packed packed/images --unpack", 1, "the output is inside an input"),
    ("copy packed out --overwrite --unpack", 2, "no other options"),
    ("copy packed s3://bucket/images --unpack", 1, "choose a local path"),
    # import
    ("import labels out", 2, "Missing option '--images'"),
    ("import labels out --images labelled --mean 1,1,1", 1, "give both mean and std"),
    ("import labels out --images labelled --output-size 99999999", 2, "--output-size"),
    ("import labels labelled/pool --images labelled", 1, "the output is inside an input"),
    # export
    ("export pool out", 2, "Missing option '--format'"),
    ("export pool out --format sre2l", 1, "--format lpld"),
    ("export pool out --format lpqld --top-k 99", 1, "--top-k"),
    ("export pool out --format lpld --top-k 3", 2, "--top-k requires --format lpqld"),
    ("export pool s3://bucket/labels --format lpld", 1, "choose a local path"),
    # squeeze
    ("squeeze images out.st", 2, "Missing option '--teacher'"),
    (f"squeeze images file/out.st {NET}", 1, "part of the path is not a directory"),
    (f"squeeze images images/out.st {NET}", 1, "the output is inside an input"),
    (f"squeeze images out.st {NET} --epochs 2", 2, "require --train-teacher"),
    (f"squeeze images out.st {NET} --train-teacher", 2, "--train-teacher requires --teacher-weights FILE"),
    (f"squeeze images out.st {NET} --passes 2", 1, "centre views are the same in every pass"),
    (f"squeeze images out.st {FLAT}", 1, "has no BatchNorm2d layer"),
    ("squeeze images out.st --teacher resnet1888 --teacher-weights t --train-teacher", 1, "unknown network"),
    (f"squeeze damaged out.st {NET}", 1, "a.png"),
    # recover
    (f"recover out {NET} --method sre2l", 2, "Missing option '--ipc'"),
    (f"recover out {RECOVER} --method lpld", 2, "requires --statistics FILE"),
    (f"recover out {RECOVER} --method rded", 2, "requires --real"),
    (f"recover images/syn {RECOVER} --real images", 1, "the output is inside an input"),
    (f"recover out {RECOVER} --real images --part 1/2 --overwrite", 2, "cannot be combined with --part"),
    # doctor
    ("doctor --images images", 2, "require POOL"),
    ("doctor --device abacus", 2, "cannot use device 'abacus'"),
    # analyze
    (f"analyze images {NET}", 2, "Missing option '--real'"),
    # build
    (f"build images {NET}", 2, "Missing argument 'OUT'"),
    ("build images out", 2, "Missing option '--teacher'"),
    (f"build images out {NET} --teacher resnet18", 2, "once per --teacher"),
    (f"build images full {NET} --overwrite", 1, "not a label pool"),
    (f"build images out {NET} --part 0/2", 2, "expected I/N"),
    (f"build images out {NET} --part 1/2 --overwrite", 2, "cannot be combined with --part"),
    (f"build images out {NET} --image-cache images/cache", 1, "choose a path beside the input"),
    (f"build images out {NET} --image-cache out/cache", 1, "choose a path beside the input"),
    (f"build images out {NET} --replayable-by lpld --resize torch", 1, "resizing by torch"),
    (f"build images out {NET} --replayable-by lpld --patches 2", 1, "shuffled patches"),
    (f"build images out {NET} --replayable-by sre2l --ratio 2", 1, "pruned pool"),
    (f"build images out {NET} --replayable-by lpld --cutout 0.5", 1, "draws differently"),
    # train
    ("train pool", 1, "does not contain its images; give the labelled image folder (--images)"),
    ("train pool --images images --out pool/run", 1, "the output is inside an input"),
    ("train bare --images pictures --val-by-order", 2, "--val"),
    ("train bare --images pictures --mean 1,1,1", 1, "give both"),
    ("train bare --images pictures --phases soft,hard", 1, "such as soft:50,hard:200,soft:50"),
    ("train bare --images pictures --phases soft:9,hard:9 --epochs 9", 1, "expected 9 epochs in all"),
    ("train bare --images pictures --student resnet81", 1, "resnet81"),
    ("train bare --images pictures --image-cache bare/cache", 1, "choose a path beside the input"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of pools, image folders, a label folder, and things that are none of these."""
    root = tmp_path_factory.mktemp("mistakes")
    batches = make_batches(2, 4)
    write_pool(root / "pool", batches).close()
    write_pool(root / "int8", batches, codec="int8").close()
    write_pool(root / "part0", batches[::2]).close()
    write_pool(root / "edited", batches[:1]).close()
    (root / "edited" / "README.md").write_text("my own words")
    write_images(root / "images")
    write_labelled(root / "labelled")
    write_epochs(root / "labels", epochs=1, ids_file=True)
    pictures = write_pictures(root / "pictures", 12)
    with build(root / "bare", pictures) as bare:
        merge_pools([bare], root / "packed", images=find_images(bare, pictures))
    for name in ("empty", "full", "broken", "damaged/class0"):
        (root / name).mkdir(parents=True)
    (root / "full" / "thesis.txt").write_text("years of work")
    (root / "file").write_text("not what you think")
    (root / "loop").symlink_to(root / "loop")
    (root / "broken" / "pool.json").write_text("{")
    (root / "damaged" / "class0" / "a.png").write_bytes(b"no image")
    return root


def contents(root: Path) -> dict[str, tuple[bytes, int] | None]:
    """Return all files below a directory with their times; None stands for a directory."""
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else None
        for path in root.rglob("*")
    }


def test_every_command_has_its_mistakes() -> None:
    assert {words.split()[0] for words, _, _ in MISTAKES} >= set(LAZY_COMMANDS)


@pytest.mark.parametrize(("words", "code", "message"), MISTAKES, ids=[words for words, _, _ in MISTAKES])
def test_mistake(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch, words: str, code: int, message: str
) -> None:
    monkeypatch.chdir(place)
    before = contents(place)
    result = cli(*shlex.split(words))
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""
    errors = [line for line in result.stderr.splitlines() if line.lower().startswith("error:")]
    assert len(errors) == 1, result.stderr
    assert contents(place) == before
