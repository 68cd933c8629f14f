"""The README's results, written from the committed JSON files so that no figure is typed by hand.

    python -m benchmarks.readme_results            rewrite the part of README.md between the two marks
    python -m benchmarks.readme_results --check    say whether it is up to date

Every section names the command that measures it. A test runs the check.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import PROJECT, RESULTS

README = PROJECT / "README.md"
BEGIN = "<!-- results: written by `python -m benchmarks.readme_results` -->"
END = "<!-- end of results -->"


class Results:
    """The committed documents by name."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Any:
        return json.loads((self._folder / f"{name}.json").read_text())["results"]

    def source(self, name: str) -> str:
        """Return the command that made a document, and where it is."""
        command = json.loads((self._folder / f"{name}.json").read_text())["command"]
        return f"`{command}`, [{name}.json](benchmarks/results/{name}.json)"


def page(results: Results) -> str:
    """Return all sections."""
    sections = (storage, rate_distortion, students, accuracy, diversity, speed, scaling)
    return "\n\n".join("\n".join(section(results)) for section in sections)


def storage(results: Results) -> Iterable[str]:
    """Storage of ImageNet-1K at three sizes."""
    found = results["storage_tables"]
    rows = {
        (row["ipc"], row["ratio"], row["layout"]): row
        for row in found["rows"]
        if row["dataset"] == "ImageNet-1K"
    }
    worst = {
        name: max(
            abs(row["deviation"])
            for row in found["rows"]
            if row["dataset"] == name and row["ratio"] == 1 and row["layout"] == "original"
        )
        for name in ("ImageNet-1K", "Tiny-ImageNet", "ImageNet-21K-P")
    }
    kept = found["information_kept_at_t20"]["ImageNet-1K"]["klt"]
    yield "### Storage"
    yield ""
    yield (
        "Real label batches written in the original layout and in ours, measured on disk and scaled by the "
        "exact number of batches. The original layout lands within "
        + ", ".join(f"{value:.1%} of the paper on {name}" for name, value in worst.items())
        + f". `klt` here keeps {kept:.1%} of the labels' information at the training temperature of 20."
    )
    yield ""
    body = []
    for ipc in (10, 50, 100, 200):
        full = rows[ipc, 1, "original"]
        values = [full["paper"], full["measured"]] + [
            rows[ipc, 1, codec]["measured"] for codec in ("f16", "int8", "klt")
        ]
        values.append(rows[ipc, 40, "klt"]["measured"])
        body.append([str(ipc), *(f"{value:.3g}" for value in values), f"{full['images_paper']:g}"])
    heads = ("images per class", "paper", "original, again", "`f16`", "`int8`", "`klt`", "`klt`, pruned 40x")
    yield from table((*heads, "the images"), body)
    yield ""
    yield f"ImageNet-1K, GiB. {results.source('storage_tables')}"
    yield ""
    yield "![Label storage of published systems and of this project](benchmarks/results/storage.png)"


def rate_distortion(results: Results) -> Iterable[str]:
    """Bytes against kept information, and the promises kept."""
    found = results["rate_distortion"]
    curve = found["curves"][0]
    wanted = ("klt 0.97 at T=20", "klt 0.96 at T=20", "klt 0.9 at T=20", "topk:50:16", "topk:10:16", "int4")
    settings = {setting["codec"]: setting for setting in curve["settings"]}
    yield "### Bytes against information"
    yield ""
    yield (
        f"Real ImageNet-1K logits, 2,000 bytes a row in fp16; fitted on {curve['rows_fitted']:,} rows, "
        f"measured on {curve['rows_measured']:,} others. *Kept* is 1 - KL(p, q) / KL(p, uniform) at "
        "temperature T."
    )
    yield ""
    body = []
    for name in wanted:
        setting = settings[name]
        kept = setting["kept"]
        body.append(
            [
                f"`{name}`",
                f"{setting['bytes_per_row']['1000000']['payload']:.0f}",
                f"{kept['1']:.3f}",
                f"{kept['4']:.3f}",
                f"{kept['20']:.3f}",
            ]
        )
    yield from table(("codec", "label bytes per row", "kept, T=1", "T=4", "T=20"), body)
    yield ""
    for claim in found["claims"]:
        yield f"- {'' if claim['holds'] else '**not met:** '}{claim['text']}: {claim['found']}"
    yield ""
    yield f"{results.source('rate_distortion')}"
    yield ""
    yield "![Bytes per row against information lost](benchmarks/results/rate_distortion.png)"


def students(results: Results) -> Iterable[str]:
    """Students of f16, klt and top-k labels."""
    yield "### Students and codecs"
    yield ""
    body = []
    for chain in results["codec_students"]:
        for pool in chain["pools"]:
            kept = pool["fidelity"]
            body.append(
                [
                    chain["chain"],
                    f"`{pool['labels']}`",
                    f"{pool['label_bytes_per_row']:.1f}",
                    "1" if kept is None else f"{kept['kept']['20']:.3f}",
                    f"{100 * pool['top1_mean']:.1f} +/- {100 * pool['top1_std']:.1f}",
                ]
            )
    yield from table(("data", "labels", "label bytes per row", "kept, T=20", "top-1, %"), body)
    yield ""
    yield (
        "Three seeds, real images, everything but the codec equal; top-k has the k that comes closest to the "
        f"bytes of klt. {results.source('codec_students')}"
    )


def accuracy(results: Results) -> Iterable[str]:
    """The paper's main table at a scale of 20 classes, with verdicts."""
    found = results["accuracy"]
    scale = found["scale"]
    main = [row for row in found["rows"] if "main" in row["groups"]]
    cells = {(row["method"], row["pool"], row["ratio"]): row for row in main}
    yield "### Accuracy under pruning"
    yield ""
    yield (
        f"20 classes of Tiny-ImageNet at {scale['size']} px, {scale['ipc']} images per class, "
        f"{scale['epochs']} epochs of labels, a teacher of {100 * found['teacher']['top1']:.1f} %; top-1 of "
        f"{found['students']} students, {found['training_seconds']['sum'] / 60:.0f} minutes of training in "
        "all on one thread each. One student's standard deviation is "
        f"{100 * found['noise_of_one_student']:.1f} points."
    )
    yield ""
    body = []
    for method in ("lpld", "sre2l"):
        for pool, name in (("batches", "drawn from all (ILP)"), ("epochs", "whole epochs")):
            values = [cells[method, pool, ratio] for ratio in (1, 10, 20, 40)]
            body.append([method, name, *(f"{100 * v['mean']:.1f} +/- {100 * v['std']:.1f}" for v in values)])
    yield from table(("images", "label batches", "1x", "10x", "20x", "40x"), body)
    yield ""
    yield "The paper's claims at this scale (difference in points, positive speaks for the claim):"
    yield ""
    for claim in found["claims"]:
        yield (
            f"- {claim['claim']}: **{claim['verdict']}**, {100 * claim['difference']:+.1f} "
            f"(two standard errors: {100 * claim['two_errors']:.1f})"
        )
    yield ""
    yield f"{results.source('accuracy')}"
    yield ""
    yield "![Accuracy against label bytes](benchmarks/results/accuracy.png)"


def diversity(results: Results) -> Iterable[str]:
    """Similarity within classes and distance to real images."""
    yield "### Diversity"
    yield ""
    body = [
        [
            row["images"],
            f"{row['similarity_mean']:.3f} +/- {row['similarity_std']:.3f}",
            "" if row["mmd_squared"] is None else f"{row['mmd_squared']:.3f}",
        ]
        for row in results["diversity"]["rows"]
    ]
    heads = ("images", "cosine similarity within a class (lower is more diverse)", "MMD² to real images")
    yield from table(heads, body)
    yield ""
    yield f"20 classes of Tiny-ImageNet, 10 images per class. {results.source('diversity')}"


def speed(results: Results) -> Iterable[str]:
    """Speed of every part, as a ratio to a baseline of the same run."""
    yield "### Speed"
    yield ""
    yield "Medians on two cores without a GPU, each against a baseline in the same run."
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
            f"images replayed per second, {case}",
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
    yield from table(("what", "how fast", "against"), body)
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
    yield "### Growth"
    yield ""
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
    yield "![Time per row and memory against pool size](benchmarks/results/scaling.png)"


def table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> Iterable[str]:
    """Yield the lines of a Markdown table."""
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in body:
        yield f"| {' | '.join(row)} |"


def with_results(readme: str, results: Results) -> str:
    """Return the README with its results part written anew."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{page(results)}\n\n{END}{after}"


def main() -> None:
    """Write or check."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if it is out of date")
    arguments = parser.parse_args()
    before = README.read_text()
    after = with_results(before, Results())
    if arguments.check:
        sys.exit(None if before == after else "README.md is out of date: python -m benchmarks.readme_results")
    README.write_text(after)


if __name__ == "__main__":
    main()
