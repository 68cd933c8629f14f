"""Beyond one machine: Ray beside `--jobs`, the driver's memory, and where 64 workers would wait.

    python -m benchmarks.scale_out --json benchmarks/results/scale_out.json
    python -m benchmarks.scale_out --costs     the table of docs/clusters.md

Engines build the same pool by turns, with one thread per worker; start-up is not counted, pools are compared.
Constants (a task that is nothing, a seal, a commit of shards that others sealed) are measured alone, and the
calculation for ImageNet-21K follows from them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.harness import parsed, write_json
from benchmarks.scale_out import costs
from benchmarks.scale_out.calculation import Constants, at_scale
from benchmarks.scale_out.constants import store, task_seconds
from benchmarks.scale_out.engines import drive, driver_memory, efficiency


def measure(work: Path, *, quick: bool) -> dict[str, Any]:
    """Measure everything; a quick run shows that it works and measures nothing."""
    engines = efficiency(work, 40 if quick else 2000, rounds=1 if quick else 3)
    memory = driver_memory(work, 20 if quick else 2000)
    task = task_seconds(40 if quick else 400)
    stored = store(work, 2 if quick else 4, 2 if quick else 90)
    constants = Constants(
        task_seconds=round(task, 6),
        seal_gb_per_second=stored["seal_gb_per_second"],
        commit_gb_per_second=stored["commit_gb_per_second"],
        driver_bytes_per_batch=max(memory["bytes_per_batch"], 0),
    )
    return {"engines": engines, "driver": memory, "store": stored, "at_scale": at_scale(constants)}


def show(results: dict[str, Any]) -> None:
    """Print what was found."""
    table = Table(title="Beyond one machine")
    table.add_column("what")
    table.add_column("found", justify="right")
    engines, scale = results["engines"], results["at_scale"]
    rows = {
        f"Ray's time over --jobs, {engines['batches']} batches": f"{engines['median_ray_over_local']:.3f}",
        "driver's memory, 10x the batches": f"+{results['driver']['growth_mb']['labelling']:.1f} MB",
        "a task that is nothing": f"{1000 * scale['constants']['task_seconds']:.2f} ms",
        "a commit": f"{results['store']['commit_gb_per_second']:.2f} GB/s",
        "64 workers, 63 million views: labelling": f"{scale['labelling_hours']:.2f} h",
        "its commit": f"{scale['commit_hours']:.2f} h",
        **{f"busy share: {name}": f"{share:.3f}" for name, share in scale["busy_share"].items()},
    }
    for name, value in rows.items():
        table.add_row(name, value)
    Console().print(table)


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write results here")
    parser.add_argument("--quick", action="store_true", help="seconds, and no figures")
    parser.add_argument("--costs", action="store_true", help="print the table of docs/clusters.md, no more")
    parser.add_argument("--driver", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parsed(parser)
    if arguments.costs:
        print("\n".join(costs.table()))
        return
    if arguments.driver is not None:
        print(json.dumps(drive(arguments.work, arguments.driver)))
        return
    with tempfile.TemporaryDirectory() as work:
        results = measure(Path(work), quick=arguments.quick)
    show(results)
    if arguments.json is not None:
        write_json(
            arguments.json,
            benchmark="beyond one machine",
            command="python -m benchmarks.scale_out --json benchmarks/results/scale_out.json",
            results=results,
        )


if __name__ == "__main__":
    main()
