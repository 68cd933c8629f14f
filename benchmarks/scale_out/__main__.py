"""Beyond one machine: Ray beside `--jobs`, the driver's memory, and where 64 workers would wait.

    python -m benchmarks.scale_out --json benchmarks/results/scale_out.json
    python -m benchmarks.scale_out --costs     the table of docs/clusters.md

Engines build the same pool by turns, with one thread per worker; time counts from the moment on at which all
workers have begun, pools are compared. Constants (a task that is nothing, a seal, a commit of shards that the
command's own workers sealed, one that reads them all) are measured alone, and the calculation for
ImageNet-21K follows from them.
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
from benchmarks.scale_out.constants import publishing, store, task_seconds
from benchmarks.scale_out.engines import ENGINES, drive, driver_memory, efficiency


def measure(work: Path, *, quick: bool) -> dict[str, Any]:
    """Measure everything; a quick run shows that it works and measures nothing."""
    engines = efficiency(work, 40 if quick else 2000, rounds=1 if quick else 5)
    memory = driver_memory(work, 20 if quick else 2000)
    task = task_seconds(40 if quick else 400)
    stored = store(work, 1 if quick else 6)
    published = publishing(work, 1 if quick else 10, 3 if quick else 110)
    constants = Constants(
        task_seconds=round(task, 6),
        seal_gb_per_second=stored["seal_gb_per_second"],
        commit_seconds_per_shard=published["commit_seconds_per_shard"],
        proof_gb_per_second=stored["proof_gb_per_second"],
        driver_bytes_per_batch=max(memory["ray"]["bytes_per_batch"], 0),
    )
    return {
        "engines": engines,
        "driver": memory,
        "store": stored,
        "publishing": published,
        "at_scale": at_scale(constants),
    }


def show(results: dict[str, Any]) -> None:
    """Print what was found."""
    table = Table(title="Beyond one machine")
    table.add_column("what")
    table.add_column("found", justify="right")
    engines, scale = results["engines"], results["at_scale"]
    ratios = f"{engines['median_ray_over_local']:.3f} ({min(engines['ray_over_local']):.3f} to "
    ratios += f"{max(engines['ray_over_local']):.3f})"
    rows = {
        f"Ray's time over --jobs, {engines['batches']} batches, median and range": ratios,
        **{
            f"driver's memory, 10x the batches, {name}": f"+{found['growth_mb']['commit']:.1f} MB"
            for name, found in results["driver"].items()
        },
        "a task that is nothing": f"{1000 * scale['constants']['task_seconds']:.2f} ms",
        "the commit of a shard": f"{1000 * results['publishing']['commit_seconds_per_shard']:.1f} ms",
        "a commit that reads everything": f"{results['store']['proof_gb_per_second']:.2f} GB/s",
        "64 workers, 63 million views: labelling": f"{scale['labelling_hours']:.2f} h",
        "its commit": f"{scale['commit_hours']:.2f} h",
        "its commit, where everything is read": f"{scale['commit_hours_if_all_is_read']:.2f} h",
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
    parser.add_argument("--driver", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--batches", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parsed(parser)
    if arguments.costs:
        print("\n".join(costs.table()))
        return
    if arguments.driver is not None:
        print(json.dumps(drive(arguments.work, arguments.driver, arguments.batches)))
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
