"""The paper's storage tables: published, the original layout measured again, and ours.

    python -m benchmarks.storage --json benchmarks/results/storage_tables.json \\
        --png benchmarks/results/storage.png
    python -m benchmarks.storage --materialise --json benchmarks/results/storage_materialised.json

A few label batches of real logits are written in every layout and weighed; sizes are scaled by the exact
number of rows. --materialise writes whole ImageNet-1K IPC 10 pools (about 12 GB at a time) to check that.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.harness import parsed, write_json
from benchmarks.common.label_source import REAL_LABELS
from benchmarks.storage.chart import draw
from benchmarks.storage.components import component_table, statistics_table
from benchmarks.storage.materialise import materialise
from benchmarks.storage.measure import OURS, Measurement
from benchmarks.storage.spec import DATASETS, IMAGENET_1K, RATIOS, UNITS, Dataset, Published

BATCHES = 32
QUICK_BATCHES = 4
QUICK_DATASETS = [replace(dataset, rows=dataset.rows[:1]) for dataset in DATASETS[:2]]
LAYOUTS = ("original", *OURS)


def storage_rows(measurement: Measurement) -> list[dict[str, Any]]:
    """Return one row per images-per-class, ratio and layout of a data set."""
    dataset = measurement.dataset
    return [
        _row(measurement, published, ratio, layout)
        for published in dataset.rows
        for ratio in RATIOS
        for layout in LAYOUTS
    ]


def _row(measurement: Measurement, published: Published, ratio: int, layout: str) -> dict[str, Any]:
    dataset, ipc = measurement.dataset, published.ipc
    size = (
        measurement.original(ipc, ratio) if layout == "original" else measurement.ours(layout, ipc, ratio)
    ) / UNITS[dataset.unit]
    paper = published.labels if ratio == 1 else published.pruned.get(ratio)
    return {
        "dataset": dataset.name,
        "ipc": ipc,
        "ratio": ratio,
        "layout": layout,
        "unit": dataset.unit,
        "measured": float(f"{size:.5g}"),
        "paper": paper,
        "deviation": None if paper is None else round(size / paper - 1, 4),
        "images_paper": published.images,
    }


def check(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what is not as promised: the original layout near the paper at 1x, ours smaller everywhere."""
    tolerance = {dataset.name: dataset.tolerance for dataset in DATASETS}
    original = {_place(row): row["measured"] for row in rows if row["layout"] == "original"}
    wrong = []
    for row in rows:
        name = f"{row['dataset']} IPC {row['ipc']} {row['ratio']}x {row['layout']}"
        if row["layout"] != "original":
            if row["measured"] >= original[_place(row)]:
                wrong.append(f"{name}: not smaller than the original layout")
        elif row["ratio"] == 1 and abs(row["deviation"]) > tolerance[row["dataset"]]:
            wrong.append(f"{name}: {row['deviation']:+.1%} from the paper")
    return wrong


def _place(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["dataset"], row["ipc"], row["ratio"]


def measure(labels: Path, *, batches: int, datasets: Sequence[Dataset] = DATASETS) -> dict[str, Any]:
    """Run everything but --materialise."""
    start = time.perf_counter()
    rows: list[dict[str, Any]] = []
    kept = {}
    components: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for dataset in datasets:
            measurement = Measurement(labels, dataset, Path(name), batches=batches)
            rows += storage_rows(measurement)
            kept[dataset.name] = {codec: round(value, 4) for codec, value in measurement.kept.items()}
            if dataset.name == IMAGENET_1K.name:
                components = component_table(measurement, Path(name))
        statistics = statistics_table(Path(name))
    return {
        "rows": rows,
        "layouts": [_described(dataset) for dataset in datasets],
        "information_kept_at_t20": kept,
        "components": components,
        "class_statistics": statistics,
        "wrong": check(rows),
        "seconds": round(time.perf_counter() - start, 1),
    }


def _described(dataset: Dataset) -> dict[str, Any]:
    return {
        "dataset": dataset.name,
        "unit": dataset.unit,
        "classes": dataset.classes,
        "epochs": dataset.epochs,
        "batch_size": dataset.batch_size,
        "layout": "one torch.save file per batch, fp16 logits",
    }


def show(results: dict[str, Any]) -> None:
    """Print the tables."""
    console = Console(width=130)
    for layout in results["layouts"]:
        console.print(_storage(layout, [r for r in results["rows"] if r["dataset"] == layout["dataset"]]))
    if results["components"]:
        console.print(_components(results["components"]))
    console.print(_statistics(results["class_statistics"]))
    for line in results["wrong"]:
        console.print(f"not as promised: {line}")
    console.print(f"{results['seconds']:.0f} s")


def _storage(layout: dict[str, Any], rows: Sequence[dict[str, Any]]) -> Table:
    unit = layout["unit"]
    table = Table(
        title=f"{layout['dataset']}: label storage in {unit}, {layout['epochs']} epochs of batches of "
        f"{layout['batch_size']} (original: {layout['layout']})"
    )
    headings = ("IPC", "ratio", "paper", "original", "deviation", *OURS, "original / klt", "images (paper)")
    for heading in headings:
        table.add_column(heading, justify="right")
    found = {(row["ipc"], row["ratio"], row["layout"]): row for row in rows}
    for row in rows:
        if row["layout"] != "original":
            continue
        ours = [found[row["ipc"], row["ratio"], codec]["measured"] for codec in OURS]
        table.add_row(
            str(row["ipc"]),
            f"{row['ratio']}x",
            "" if row["paper"] is None else f"{row['paper']:g}",
            f"{row['measured']:.4g}",
            "" if row["deviation"] is None else f"{row['deviation']:+.1%}",
            *(f"{value:.4g}" for value in ours),
            f"{row['measured'] / ours[-1]:.1f}x",
            f"{row['images_paper']:g}" if row["ratio"] == 1 else "",
        )
    return table


def _components(components: dict[str, Any]) -> Table:
    entries = components["components"]
    table = Table(title="Bytes per row of the six components of a soft label (ImageNet-1K)")
    columns = [name for name in entries[0] if name != "component"]
    table.add_column("component")
    for name in columns:
        table.add_column(name.replace("_bytes_per_row", ""), justify="right")
    for entry in entries:
        table.add_row(entry["component"], *(f"{entry[name]:g}" for name in columns))
    table.add_section()
    for rate in components["rates"]:
        table.add_row(f"{rate['method']}: full rate", f"{rate['paper']:g}x", f"= {rate['rate']:g}x")
    return table


def _statistics(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Class-wise statistics of a ResNet-18, MiB: here (paper)")
    parts = ("model", "statistics", "together")
    for heading in ("dataset", "classes", "channels", *parts):
        table.add_column(heading, justify="left" if heading == "dataset" else "right")
    for row in rows:
        table.add_row(
            row["dataset"],
            str(row["classes"]),
            str(row["channels"]),
            *(
                f"{row[name]:.2f} ({row[name + '_paper']:.2f})"
                for name in ("model", "statistics", "together")
            ),
        )
    return table


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write results here")
    parser.add_argument("--png", type=Path, help="draw the chart here")
    parser.add_argument("--labels", type=Path, default=REAL_LABELS, help="pool of real logits")
    parser.add_argument("--quick", action="store_true", help="few batches and images; without ImageNet-21K-P")
    parser.add_argument("--materialise", action="store_true", help="write whole ImageNet-1K IPC 10 pools")
    parser.add_argument("--epochs", type=int, help="of --materialise [default: all 300]")
    arguments = parsed(parser)
    command = "python -m benchmarks.storage"
    if arguments.materialise:
        results: Any = _materialised(arguments.labels, arguments.epochs)
        command += " --materialise"
    else:
        results = measure(
            arguments.labels,
            batches=QUICK_BATCHES if arguments.quick else BATCHES,
            datasets=QUICK_DATASETS if arguments.quick else DATASETS,
        )
        show(results)
        if arguments.png is not None:
            draw(results["rows"], arguments.png)
    if arguments.json is not None:
        write_json(arguments.json, benchmark="storage_tables", command=command, results=results)


def _materialised(labels: Path, epochs: int | None) -> list[dict[str, Any]]:
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as name, console.status("writing") as status:
        measurement = Measurement(labels, IMAGENET_1K, Path(name), batches=BATCHES)
        found = materialise(
            measurement,
            Path(name),
            epochs=epochs,
            progress=lambda layout, done, total: status.update(f"{layout}: {done} of {total} batches"),
        )
    Console().print_json(data=found)
    return found


if __name__ == "__main__":
    main()
