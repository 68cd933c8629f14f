"""One word for one thing, sizes as people write them, paths the shell completes."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete
from lpld_cli.main import LAZY_COMMANDS, group
from lpld_cli.options import BUDGET, POOL_BUDGET

from lpld_labels.transforms.settings import Amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("4000", Amount(number=4000, of="bytes")),
        ("30K", Amount(number=30_000, of="bytes")),
        ("30k", Amount(number=30_000, of="bytes")),
        ("300MB", Amount(number=300_000_000, of="bytes")),
        ("1 GiB", Amount(number=2**30, of="bytes")),
        ("1.5Gi", Amount(number=1.5 * 2**30, of="bytes")),
        ("10%", Amount(number=0.1, of="pool")),
        ("0.5x", Amount(number=0.5, of="pool")),
        ("1.0x-images", Amount(number=1, of="images")),
    ],
)
def test_sizes_as_people_write_them(text: str, amount: Amount) -> None:
    found = BUDGET.convert(text, None, None)
    assert found.of == amount.of
    assert found.number == pytest.approx(amount.number)
    assert found.bytes(pool=1000, images=50) == int(
        amount.number * {"bytes": 1, "pool": 1000, "images": 50}[found.of]
    )


@pytest.mark.parametrize("text", ["much", "30Q", "-3", "0", "0%", "0x", "", "MB", "1x-images"])
def test_what_is_no_size_is_answered_with_all_forms(text: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        POOL_BUDGET.convert(text, None, None)
    for form in ("300MB", "30K", "1 GiB", "4000", "10%", "0.5x"):
        assert form in str(caught.value)


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
    for gone in ("--model", "--model-weights", "--policy", "--warm-up-epochs", "--warm-up-from", "--force"):
        assert not [name for name, words in options.items() if gone in words], gone
    writers = ("squeeze", "recover", "build", "prune", "encode", "copy", "plan", "train", "import", "export")
    for name in (*writers, "inspect"):
        assert "--overwrite" in options[name], name
    assert {"quiet", "verbose", "progress"} <= {param.name for param in group.params}
    for name in ("build", "import", "encode", "plan"):
        assert options[name]["-j"] is options[name]["--jobs"]
    assert options["train"]["-j"] is options["train"]["--workers"]
    for name in ("build", "train", "squeeze", "analyze"):
        assert options[name]["-b"] is options[name]["--batch-size"]
    assert "--sampling" in options["train"]


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


def test_the_package_can_be_run() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lpld_cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("lpld-labels ")
