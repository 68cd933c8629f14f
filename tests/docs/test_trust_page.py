"""docs/trust.md says what the code and the figures say."""

import importlib
import re
from pathlib import Path

import pytest

from tests.trust.report import PAGE, written

ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| `([\w.]+)\.([A-Z][A-Z_]+)` \| ([^|]+) \|$", re.MULTILINE)


def number(text: str) -> int:
    """Read 2^25, 2^63 - 1 or 40,000,000."""
    power = re.fullmatch(r"2\^(\d+)( - 1)?", text)
    if power:
        return (1 << int(power[1])) - (1 if power[2] else 0)
    return int(text.replace(",", ""))


def test_limits_are_those_of_the_code() -> None:
    rows = ROW.findall(PAGE.read_text())
    assert len(rows) > 25
    for what, value, module, name, raised in rows:
        found = getattr(importlib.import_module(f"lpld_labels.{module}"), name)
        assert found == number(value), (what, name)
        assert raised.strip()
    limits = importlib.import_module("lpld_labels.format.limits")
    named = {name for _, _, _, name, _ in rows}
    assert {name for name in vars(limits) if name.startswith("MAX_")} <= named


def test_figures_are_those_that_were_measured() -> None:
    text = PAGE.read_text()
    assert written(text) == text, "python -m tests.trust.report writes them again"


@pytest.mark.parametrize("document", ["docs/trust.md", "SECURITY.md"])
def test_what_is_named_exists(project: Path, document: str) -> None:
    text = (project / document).read_text()
    named = re.findall(r"`((?:tests|benchmarks|lpld_labels)/[\w./-]+)`", text)
    assert [path for path in named if not (project / path).exists()] == []
    for module in re.findall(r"`python -m (tests\.[\w.]+)", text):
        place = project / module.replace(".", "/")
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), module
    for target in re.findall(r"`make (\w+)`", text):
        assert f"\n{target}:" in (project / "Makefile").read_text(), target
