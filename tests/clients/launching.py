"""Starting several processes of a training script, all on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

WORKERS = Path(__file__).parent / "workers"
ROOT = Path(__file__).resolve().parents[2]
# Launchers leave these behind; a test must not inherit them from whoever runs it.
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def environment() -> dict[str, str]:
    """Return an environment in which processes talk over the loopback device only, on one thread each."""
    kept = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    paths = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH", "")]))
    return {**kept, "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def run(words: list[str]) -> None:
    """Run a command to its end; its output is shown if it fails."""
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def launcher(ranks: int) -> list[str]:
    """Return torchrun's words; a rendezvous at port 0 takes one that is free."""
    place = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    return [sys.executable, "-m", "torch.distributed.run", *place, f"--nproc-per-node={ranks}"]


def torchrun(worker: str, ranks: int, *arguments: object) -> None:
    """Run a worker script under torchrun."""
    run([*launcher(ranks), str(WORKERS / worker), *map(str, arguments)])


def results(directory: Path, ranks: int) -> list[dict[str, Any]]:
    """Return what each rank wrote."""
    return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(ranks)]
