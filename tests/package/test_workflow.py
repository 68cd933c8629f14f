"""The workflow runs targets that exist; every extra is documented."""

import re
from pathlib import Path

import pytest
import yaml

from lpld_labels.errors import EXTRAS


def test_every_target_exists_and_all_are_run(project: Path) -> None:
    jobs = yaml.safe_load((project / ".github/workflows/test.yml").read_text())["jobs"]
    lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = {word for line in lines for word in line.split()[1:] if "=" not in word}
    rules = set(re.findall(r"^([\w-]+):", (project / "Makefile").read_text(), flags=re.MULTILINE))
    assert all(line.startswith("make ") for line in lines)
    assert targets == {"lint", "types", "docs", "unit", "test-lowest"}
    assert targets <= rules


def test_only_the_job_that_publishes_may_sign_in(project: Path) -> None:
    workflow = yaml.safe_load((project / ".github/workflows/release.yml").read_text())
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 takes `on` for a truth value
    assert workflow["permissions"] == {"contents": "read"}
    allowed = {name: job.get("permissions") for name, job in workflow["jobs"].items()}
    assert allowed == {"build": None, "publish": {"id-token": "write"}}
    assert workflow["jobs"]["publish"]["needs"] == "build"
    lines = [step.get("run", "") for step in workflow["jobs"]["build"]["steps"]]
    assert "python -m twine check --strict dist/*" in lines
    used = [step["uses"] for step in workflow["jobs"]["publish"]["steps"]]
    assert used[-1].startswith("pypa/gh-action-pypi-publish@")


def test_every_extra_is_documented_and_installs_what_it_is_recommended_for(project: Path) -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no TOML parser")
    extras = tomllib.loads((project / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for module, extra in EXTRAS.items():
        assert any(re.match(rf"{module}\b", line) for line in extras[extra]), (module, extra)
    page = (project / "docs/howto/install.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(extras)
