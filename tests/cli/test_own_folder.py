"""The README's way from one's own folder to a student, run as it is written.

It takes the time of five programs that start torch and train: some twenty seconds of one core.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.lpld_core.image_folders import write_images


def test_five_commands_lead_to_a_student(tmp_path: Path, project: Path) -> None:
    readme = (project / "README.md").read_text()
    (script,) = re.findall(
        r"<!-- run by tests/cli/test_own_folder\.py -->\n```bash\n(.*?)```", readme, re.DOTALL
    )
    assert re.findall(r"^lpld-labels (\w+)", script, re.MULTILINE) == [
        "squeeze",
        "recover",
        "build",
        "prune",
        "train",
    ]
    write_images(tmp_path / "mine" / "train", classes=2, per_class=8, side=32)
    write_images(tmp_path / "mine" / "val", classes=2, per_class=4, side=32)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in (
        "teacher.safetensors",
        "syn/contact_sheet.png",
        "pool10/pool.json",
        "student/student.safetensors",
    ):
        assert (tmp_path / name).is_file(), name
    assert "top-1" in done.stdout.splitlines()[-1]
