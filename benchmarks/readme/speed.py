"""The results' sections on speed and on how cost grows."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.readme.parts import Results, table


def speed(results: Results) -> Iterable[str]:
    """Speed of every part, as a ratio to a baseline of the same run."""
    yield "Medians on two cores without a GPU, each compared with a baseline in the same run."
    yield ""
    loader = results["loader_throughput"]
    peers = {n: r for n, r in loader["random_labels"].items() if not n.startswith("lpld-labels")}
    best = max(peers, key=lambda name: peers[name]["per_s"])
    read = results["read_write"]["layouts"]
    moved, cut, label = results["import_speed"], results["prune_speed"], results["relabel_speed"]
    method = {(s["network"], s["classes"]): s for s in results["method_speed"]["statistics"]}
    groups = {entry["class_group"]: entry for entry in results["method_speed"]["recovery"]}
    body = [
        (
            f"images rendered per second, {case}",
            f"{row['lpld-labels']['per_s']:,.0f}",
            f"{row['speedup']:.1f}x a pickle per batch and PIL per image ({row['baseline']['per_s']:,.0f})",
        )
        for case, row in loader["end_to_end"].items()
    ]
    body += [
        (
            f"label batches read at random per second, `{form}`",
            f"{loader['random_labels'][f'lpld-labels {form}']['per_s']:,.0f}",
            f"best of the others: {best}, {peers[best]['per_s']:,.0f}, uncompressed",
        )
        for form in ("f16:plain", "f16", "int8")
    ]
    body += [
        (
            f"one random batch, `{form}`",
            f"{1e3 * read[form]['random_read']['median_s']:.2f} ms",
            f"{read[form]['random_read_ratio']:.2f} of torch.load's time",
        )
        for form in ("f16", "f16:plain", "int8 as float32")
    ]
    pruned = cut["random, batch level"]
    whole = moved["long"]
    body += [
        (
            f"importing a label folder, {whole['batches']:,} batches",
            f"{whole['mb_per_core_s']:.0f} MB per core second",
            f"{moved['torch_load']['mb_per_core_s']:.0f} for torch.load alone",
        ),
        (
            f"pruning {cut['pool']['bytes'] / 1e9:.1f} GB {cut['ratio']}x at random",
            f"{pruned['seconds']:.1f} s, {pruned['peak_memory_mb']:.0f} MB of memory",
            "reads only what it keeps",
        ),
        (
            "labelling, ResNet-18 at 224 px",
            f"{label['labelling']['share_of_teacher']['median']:.0%} of the teacher's own speed",
            f"augmentation {label['apply']['speed_up']:.1f}x PIL",
        ),
    ]
    body += [
        (
            f"class statistics, 1,000 classes, {network.split(':')[0]} at {method[network, 1000]['size']} px",
            f"{method[network, 1000]['times_faster_than_all_classes']:.0f}x",
            "a loop that masks one class after the other",
        )
        for network in ("small-resnet10:width=32,stem_stride=2", "resnet18")
    ]
    grouped = f"{groups[10]['times_faster_than_group_1']:.1f}x"
    body.append(("recovery, 10 classes in one pass", grouped, "one class at a time"))
    yield from table(("operation", "speed", "compared with"), body)
    yield ""
    documents = (
        "loader_throughput",
        "read_write",
        "import_speed",
        "prune_speed",
        "relabel_speed",
        "method_speed",
    )
    for name in documents:
        yield f"- {results.source(name)}"


def scaling(results: Results) -> Iterable[str]:
    """Cost against pool size."""
    rows = results["scaling"]["rows"]
    sizes = sorted({row["batches"] for row in rows})
    body = []
    for operation, per in (("write", "row"), ("prune", "row"), ("encode", "row"), ("open", ""), ("read", "")):
        mine = {row["batches"]: row for row in rows if row["operation"] == operation}
        cells = []
        for size in sizes:
            seconds = mine[size]["seconds"] / (mine[size]["rows"] if per else 1)
            time = f"{1e6 * seconds:.0f} µs per row" if per else f"{1e3 * seconds:.1f} ms"
            cells.append(f"{time}, {mine[size]['peak_mb']:.0f} MB")
        body.append([operation, *cells])
    yield from table(("time and peak memory", *(f"{size:,} batches" for size in sizes)), body)
    yield ""
    yield (
        "Batches of 128 x 1,000 labels. Writing, pruning and encoding hold one shard; a reader keeps up to "
        "64 shards open and 256 MB of views, and opening another takes milliseconds. "
        f"{results.source('scaling')}"
    )
    yield ""
    yield "![Time per row and memory against pool size](../benchmarks/results/scaling.png)"
