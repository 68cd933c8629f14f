import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from benchmarks.demo.table import CLAIMS, ROWS
from lpld_labels.loader import PoolBatch
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from tests.docs.documents import blocks, commands


@pytest.mark.timeout(900)  # students are trained for real: seconds of their own, minutes on a busy machine
def test_the_demo_runs_the_whole_pipeline(
    tmp_path: Path, project: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "demo_output"  # where `make demo` writes, for the README's blocks
    stale = out / "seed-0/pools/lpld_1x/pool.json"
    stale.parent.mkdir(parents=True)
    stale.write_text("left by an earlier demo")
    (out / "mine.txt").write_text("not the demo's")
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.demo", "--out", str(out), "--quick", "--seeds", "2"],
        cwd=project,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # other tests run beside it
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "Label bytes against accuracy" in result.stdout
    assert str(out / "demo.html") in result.stdout.replace("\n", "")
    assert "Here a class has 200, and 10x keeps 20." in " ".join(result.stdout.split())
    assert "lpld-labels" not in result.stderr, "commands belong in the log"
    table = json.loads((out / "table.json").read_text())
    lines = {line["key"]: line for line in table["rows"]}
    assert list(lines) == ["teacher", *ROWS]
    assert [len(line["top1"]) for line in lines.values()] == [1, *[2] * len(ROWS)]
    assert all(0 <= top1 <= 1 for line in lines.values() for top1 in line["top1"])
    assert lines["lpld_1x"]["views"] == 10 * lines["lpld_10x"]["views"] == 200
    assert [one["claim"] for one in table["findings"]] == list(CLAIMS)
    assert (out / "mine.txt").exists()
    log = (out / "demo.log").read_text()
    times = {"squeeze": 1, "recover": 4, "build": 6, "prune": 4, "plan": 2, "train": 12}
    assert {name: log.count(f"$ lpld-labels {name} ") for name in times} == times
    page = (out / "demo.html").read_text()
    assert page.count("data:image/png;base64,") == 3, "real digits, lpld, sre2l"
    assert all(name in page for name in ROWS.values())
    pools = out / "seed-0/pools"
    with PoolReader(pools / "lpld_10x") as small, PoolReader(pools / "lpld_1x") as full:
        assert len(full.images) == 100
        for key in small.keys:
            assert (small.read_labels(key) == full.read_labels(key)).all()
        with PoolReader(pools / "lpld_klt") as klt:
            assert klt.codec.name == "klt"
            assert len(klt) > len(small)
            assert pool_bytes(klt.manifest) <= pool_bytes(small.manifest)
    monkeypatch.chdir(tmp_path)
    _run_the_readme((project / "README.md").read_text(), cli)


def _run_the_readme(readme: str, cli: Callable[..., Result]) -> None:
    """Run the README's commands and Python beside what the demo made."""
    shell, python = (
        [block.code for block in blocks(readme) if block.language == language]
        for language in ("bash", "python")
    )
    assert (len(shell), len(python)) == (2, 1)
    assert [words[0] for words in commands(shell[0])] == ["make", "make"]
    activated, *ours = commands(shell[1])
    assert activated[0] == "source"
    for program, *words in ours:
        assert program == "lpld-labels"
        done = cli(*words)
        assert done.exit_code == 0, (words, done.output)
    namespace: dict[str, object] = {}
    exec(compile(python[0], "README.md", "exec"), namespace)  # noqa: S102
    step = namespace["step"]
    assert isinstance(step, PoolBatch)
    assert tuple(step.images.shape) == (25, 3, 28, 28)
