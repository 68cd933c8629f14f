import json
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from lpld_cli.main import LAZY_COMMANDS, group

from lpld_labels.render.images import find_images
from lpld_labels.transforms.copy import merge_pools
from tests.cli.build_runs import Cli, passed
from tests.factories import make_batches, write_pool
from tests.lpld_labels.loader.loader_pools import build, write_images
from tests.servers.files import file_server

SCRIPT = Path(sys.executable).with_name("lpld-labels")


@pytest.mark.timing
def test_help_starts_in_under_300_ms() -> None:
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        subprocess.run([SCRIPT, "--help"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    # The fastest of a few: a busy machine can only make a start slower.
    assert min(seconds) < 0.3, sorted(seconds)


@pytest.mark.parametrize("words", [[SCRIPT], [sys.executable, "-m", "lpld_cli"]], ids=["script", "module"])
def test_both_ways_to_start_it(words: list[str]) -> None:
    ended = subprocess.run([*words, "--version"], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("lpld-labels ")


@pytest.mark.parametrize("name", LAZY_COMMANDS)
def test_help_has_examples(cli: Cli, name: str) -> None:
    assert f"  lpld-labels {name} " in passed(cli(name, "--help")).stdout.partition("Examples:")[2]


def test_commands_that_need_no_torch_do_not_import_it(tmp_path: Path) -> None:
    with build(tmp_path / "bare", write_images(tmp_path / "images", 12)) as bare:
        merge_pools([bare], tmp_path / "pool", images=find_images(bare, tmp_path / "images"))
    lines = (
        "inspect pool",
        "inspect pool --json",
        "inspect pool --recipe",
        "inspect pool --card -",
        "verify pool",
        "prune pool pruned --ratio 3",
        "encode pool small --codec int8",
        "plan pool --budget 1MB --codec int8",
        "report pool pool",
        "report bare --out page.html",
        "copy bare packed --images images",
        "copy pool unpacked --unpack",
    )
    code = f"""
import sys
from lpld_cli.main import group
for line in {lines!r}:
    group.main(line.split(), standalone_mode=False)
    heavy = sorted(set(sys.modules) & {{"torch", "torchvision"}})
    if heavy:
        raise RuntimeError(line, heavy)
"""
    run = [sys.executable, "-c", code]
    ended = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_closed_pipe_is_no_error(pool: Path) -> None:
    command = f"{SCRIPT} inspect {pool} --json | head -1"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)  # noqa: S602
    assert ended.stdout == "{\n"
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_trouble(pool: Path, tmp_path: Path, closed: str) -> None:
    """The file that is opened next would take the number of a closed stream, and what is printed."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        script = f'exec "$0" -m lpld_cli "$@" {closed}'
        command = ["sh", "-c", script, sys.executable, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("encode", pool, tmp_path / "out", "--codec", "int8")
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    assert run("inspect", tmp_path / "none").returncode == 1
    subprocess.run([sys.executable, "-m", "lpld_cli", "verify", tmp_path / "out"], check=True)


def test_addresses_of_files_are_paths(
    pool: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    out = tmp_path / "out"
    for command, *options in (("prune", "--ratio", "2"), ("copy",), ("export", "--format", "lpld")):
        passed(cli(command, pool.as_uri(), (out / command).as_uri(), *options))
        assert (out / command).is_dir()
    passed(cli("inspect", (out / "prune").as_uri(), "--card"))
    assert (out / "prune" / "README.md").exists()
    passed(cli("report", pool, f"--out={(out / 'page.html').as_uri()}"))
    assert (out / "page.html").exists()
    assert list((tmp_path / "here").iterdir()) == []
    for place in (out / "copy", out / "copy" / "sub", (out / "copy").as_uri(), out):
        done = cli("encode", (out / "copy").as_uri(), place, "--codec", "int8", "--overwrite")
        assert done.exit_code == 1
        assert "the output is" in done.stderr


def test_no_page_and_no_line_has_a_password(tmp_path: Path, cli: Cli) -> None:
    pool = tmp_path / "served" / "pool"
    write_pool(pool, make_batches(2, 4)).close()
    with file_server(tmp_path / "served") as server:
        address = f"http://user:a-pass-word@127.0.0.1:{server.port}/pool?token=T0KEN"
        runs: list[tuple[object, ...]] = [
            ("inspect", address),
            ("inspect", address, "--recipe"),
            ("report", address, "--out", tmp_path / "page.html"),
            ("report", address, pool),
            ("copy", address, tmp_path / "images", "--unpack"),
            ("prune", address, tmp_path / "pruned", "--ratio", "2"),
            ("encode", address, tmp_path / "small", "--codec", "int8"),
            ("plan", address, "--budget", "1MB", "--codec", "int8"),
        ]
        for words in runs:
            for more in ([], ["--json"]):
                done = cli(*words, *more, *(["--overwrite"] if words[0] in ("prune", "encode") else []))
                assert "ss-word" not in done.output, words
                assert "T0KEN" not in done.output, words
                if more and done.exit_code == 0:
                    json.loads(done.stdout)
    assert (tmp_path / "page.html").exists()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert b"ss-word" not in path.read_bytes(), path
            assert b"T0KEN" not in path.read_bytes(), path


def all_options() -> dict[str, dict[str, click.Parameter]]:
    """Return the options of every command by their spellings."""
    context = click.Context(group)
    found = {}
    for name in LAZY_COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        found[name] = {word: param for param in command.params for word in (*param.opts, param.name or "")}
    return found


def test_one_word_for_one_thing() -> None:
    options = all_options()
    for name in set(LAZY_COMMANDS) - {"analyze", "doctor", "report", "verify"}:
        assert "--overwrite" in options[name], name
    for name in LAZY_COMMANDS:
        assert "--json" in options[name], name
    assert {"quiet", "verbose", "progress"} <= {param.name for param in group.params}
    for name in ("build", "import", "encode", "plan"):
        assert options[name]["-j"] is options[name]["--jobs"]
    for name in ("build", "train", "squeeze", "analyze"):
        assert options[name]["-b"] is options[name]["--batch-size"]


def test_every_path_is_completed_by_the_shell() -> None:
    paths = {"pool", "out", "images", "val", "real", "statistics", "source", "data", "folders", "pools"}
    for command, words in all_options().items():
        for param in set(words.values()):
            if param.name in paths | {"weights", "image_cache", "plot"}:
                assert isinstance(param.type, click.Path), f"{command} {param.name}"
    complete = ShellComplete(group, {}, "lpld-labels", "_LPLD_LABELS_COMPLETE")
    (item,) = complete.get_completions(["prune"], "po")
    assert (item.value, item.type) == ("po", "dir")
    (item,) = complete.get_completions(["build", "images", "out", "--teacher-weights"], "te")
    assert item.type == "file"
    assert {item.value for item in complete.get_completions([], "in")} == {"inspect"}
