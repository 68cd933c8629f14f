"""What every benchmark shares: timing with median and spread, facts about the machine, JSON, memory."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

PROJECT = Path(__file__).resolve().parents[2]
SHARED_DATA = Path(os.environ.get("LPLD_SHARED_DATA", PROJECT.parent / "shared" / "data"))
RESULTS = PROJECT / "benchmarks" / "results"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds per call: median and quartiles over `runs` calls."""

    median: float
    low: float
    high: float
    runs: int

    def as_json(self) -> dict[str, float]:
        """Return the numbers rounded to 0.1 microseconds."""
        return {
            "median_s": round(self.median, 7),
            "quartile_low_s": round(self.low, 7),
            "quartile_high_s": round(self.high, 7),
            "runs": self.runs,
        }


def summarise(seconds: Sequence[float]) -> Timing:
    """Return median and quartiles of some measurements."""
    low, median, high = np.percentile(np.asarray(seconds), [25, 50, 75])
    return Timing(median=float(median), low=float(low), high=float(high), runs=len(seconds))


def interleaved(
    candidates: Mapping[str, Callable[[], object]], *, runs: int, warm_up: int = 2
) -> dict[str, Timing]:
    """Time the candidates in turn, round after round, so that a noisy machine is unfair to none."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(warm_up + runs):
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            if number >= warm_up:
                seconds[name].append(time.perf_counter() - start)
    return {name: summarise(values) for name, values in seconds.items()}


def peak_memory_mb() -> float:
    """Return this process's peak resident memory in MB (decimal)."""
    # Not getrusage: a child starts with its parent's peak there.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("the kernel does not tell the peak memory")


def parsed(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None, *, output: str = "json"
) -> argparse.Namespace:
    """Parse the command line of a benchmark; refuse to write results from files that are in no commit.

    output: the option that names the results file; without it nothing is published and nothing refused.
    """
    parser.add_argument(
        "--allow-dirty", action="store_true", help="write results of uncommitted files, and say so in them"
    )
    found = parser.parse_args(arguments)
    if getattr(found, output) is not None and not found.allow_dirty:
        changed = uncommitted()
        if changed:
            parser.error(
                f"{changed[0]} and {len(changed) - 1} other files are not committed, so nobody could repeat "
                "this: commit them, or record results as those of uncommitted files with --allow-dirty"
            )
    return found


def uncommitted(project: Path = PROJECT) -> list[str]:
    """Return the files that differ from the commit, results aside; ["all files"] where there is no commit."""
    command = ["git", "-C", str(project), "status", "--porcelain", "--untracked-files=all"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode or not commit(project):
        return ["all files"]
    paths = [line[3:].split(" -> ")[-1].strip('"') for line in found.stdout.splitlines()]
    return sorted(path for path in paths if not path.startswith("benchmarks/results/"))


def commit(project: Path = PROJECT) -> str:
    """Return the name of the present commit; empty where there is none."""
    command = ["git", "-C", str(project), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else ""


def circumstances(packages: Sequence[str] = ("numpy", "pyarrow", "torch", "zstandard")) -> dict[str, Any]:
    """Return what a reader needs to judge the numbers: versions, commit, hardware."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit() or "unknown",
        "uncommitted_files": len(uncommitted()),
        "python": platform.python_version(),
        "versions": versions,
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def write_json(path: Path, *, benchmark: str, command: str, results: object) -> None:
    """Write results with their circumstances."""
    write_whole(path, result_document(benchmark=benchmark, command=command, results=results))


def result_document(*, benchmark: str, command: str, results: object) -> dict[str, Any]:
    """Return results with their circumstances."""
    return {
        "benchmark": benchmark,
        "command": command,
        "circumstances": circumstances(),
        "results": results,
    }


def write_whole(path: Path, document: object) -> None:
    """Write JSON so that nobody ever reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(document, indent=2) + "\n")
    unfinished.replace(path)
