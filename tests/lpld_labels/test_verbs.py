import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from mypy import api as mypy

import lpld_labels as lpld
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.settings import setting_fields
from tests.factories import make_batches, run_python, write_pool
from tests.lpld_core.image_folders import write_images
from tests.lpld_labels import user_program

VERBS = (
    *("build", "copy", "doctor", "encode", "export", "import_labels", "plan", "prune", "recover", "report"),
    *("squeeze", "summary", "train", "verify"),
)


def call_of(name: str) -> type:
    found: type = vars(getattr(lpld, name))["call"]
    return found


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    write_pool(tmp_path / "pool", make_batches(classes=200)).close()
    return tmp_path / "pool"


@pytest.mark.parametrize("name", VERBS)
def test_help_is_enough(name: str) -> None:
    verb = getattr(lpld, name)
    parameters = inspect.signature(verb).parameters
    assert list(parameters) == sorted(parameters, key=lambda one: parameters[one].kind)
    assert set(parameters) == {entry.name for entry in fields(call_of(name))}
    explained = {match[1]: match[2] for match in re.finditer(r"^(\w+): (\S.*)", verb.__doc__, re.MULTILINE)}
    assert set(parameters) <= set(explained)
    for parameter in parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty
        assert "Annotated" not in str(parameter)
    assert inspect.signature(verb).return_annotation


def test_defaults_are_the_command_line_s() -> None:
    import click
    from lpld_cli.main import LAZY_COMMANDS, group

    for name in set(VERBS) - {"summary"}:
        parameters = inspect.signature(getattr(lpld, name)).parameters
        command = group.get_command(click.Context(group), name.removesuffix("_labels"))
        assert command is not None
        assert LAZY_COMMANDS[name.removesuffix("_labels")]
        options = {str(option.name): option for option in command.params}
        hidden = {key for key, entry in setting_fields(call_of(name)).items() if not entry.setting.option}
        assert set(parameters) - hidden == set(options) - {"as_json"} - hidden
        for key, option in options.items():
            default = getattr(option, "default", None)
            if isinstance(default, (str, int, float)) and key in parameters:
                assert parameters[key].default == default, (name, key)
    assert inspect.signature(lpld.build).parameters["mix"].default == "cutmix"


@pytest.mark.slow
def test_a_user_s_program_calls_every_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lpld_core.doctor.SECONDS", 0.05)
    write_images(tmp_path / "real", classes=3, per_class=6)
    user_program.main(tmp_path / "real", tmp_path)
    source = Path(user_program.__file__).read_text()
    assert set(re.findall(r"lpld\.(\w+)\(", source)) == {*VERBS, "PoolReader"}


@pytest.mark.slow
def test_a_user_s_program_is_typed(project: Path) -> None:
    config = str(project / "pyproject.toml")
    out, err, code = mypy.run(["--strict", "--config-file", config, user_program.__file__])
    assert code == 0, out + err


@pytest.mark.slow
def test_wrong_arguments_are_found_by_mypy(tmp_path: Path, project: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text(
        "import lpld_labels as lpld\n"
        "lpld.prune('pool', 'out', ratio='2')\n"
        "lpld.encode('pool', 'out', codek='int8')\n"
        "lpld.train('pool').weight\n"
    )
    out, _, code = mypy.run(["--strict", "--config-file", str(project / "pyproject.toml"), str(program)])
    assert code == 1
    assert [int(line) for line in re.findall(r"wrong\.py:(\d): error", out)] == [2, 3, 4]


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("prune", {"budget": "much"}, "not a size"),
        ("prune", {"budget": "1x-images"}, "not a size"),
        ("prune", {}, "either a ratio or a budget"),
        ("prune", {"ratio": 0.5}, "ratio is too small"),
        ("encode", {}, "no codec is given"),
        ("export", {"format": "lpld", "top_k": 3}, "--top-k"),
        ("export", {"format": "zip"}, "unknown export format"),
        ("copy", {"unpack": True, "overwrite": True}, "no other options"),
        ("copy", {"unpack": True}, "does not contain its images"),
    ],
)
def test_bad_values(pool: Path, tmp_path: Path, name: str, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        getattr(lpld, name)(pool, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_the_front_door_imports_neither_torch_nor_numpy() -> None:
    heavy = {"torch", "numpy", "pyarrow", "rich", "click"}
    code = f"import sys, lpld_labels; print(*sorted({heavy} & set(sys.modules)))"
    assert run_python(code).stdout == "\n"
    looked = f"import sys, lpld_labels as l; [getattr(l, n) for n in {VERBS}]; print('torch' in sys.modules)"
    assert run_python(looked).stdout == "False\n"


@pytest.mark.timing
def test_the_front_door_opens_at_once() -> None:
    code = "import time; t = time.perf_counter(); import lpld_labels; print(time.perf_counter() - t)"
    assert min(float(run_python(code).stdout) for _ in range(3)) < 0.15
