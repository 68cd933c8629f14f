"""docs/results.md and the README's figures, written from the committed JSON files: none is typed by hand.

    python -m benchmarks.readme            write docs/results.md, and README.md between its two marks
    python -m benchmarks.readme --check    say whether they are up to date

Every section names the command that measures it. A test runs the check.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from benchmarks.common.harness import PROJECT
from benchmarks.readme.accuracy import accuracy
from benchmarks.readme.demo import demo
from benchmarks.readme.figures import with_figures
from benchmarks.readme.law import law
from benchmarks.readme.parts import Results, details, percent, table
from benchmarks.readme.remote import remote
from benchmarks.readme.speed import scaling, speed
from benchmarks.readme.verdicts import verdicts

README = PROJECT / "README.md"
PAGE = PROJECT / "docs" / "results.md"
LEAD = """# Results

`python -m benchmarks.readme` writes this page from the JSON files of
[the benchmarks](../benchmarks/README.md), which record versions, commit and hardware; a test compares the
two. Everything was measured on two CPU cores. Labels of ImageNet-1K are real.
Labels of ImageNet-21K-P are simulated: real ones seen through a random head of 10,450 classes.

## Verdicts

*Paper* has the paper's figure, or "yes" if it makes the claim without one here; other claims are ours.
Students are compared by top-1 accuracy on Tiny-ImageNet. A difference counts if it is larger than two
standard errors (after +/-, in points); otherwise the claim is undecided. ILP is the paper's improved
label pool: label batches are drawn from all epochs.
"""
_LAYOUTS = {"original": "the original's files", "f16": "`f16`", "klt": "`klt`"}


def page(results: Results) -> str:
    """Return docs/results.md."""
    sections = {
        "The demo": demo,
        "Storage": storage,
        "Bytes against information": rate_distortion,
        "Students and codecs": students,
        "Accuracy under pruning": accuracy,
        "What a pruning costs": law,
        "Diversity": diversity,
        "Speed": speed,
        "Pools in object storage": remote,
        "Growth": scaling,
    }
    parts = [LEAD.strip(), "\n".join(verdicts(results)), "## Details"]
    parts += [details(title, section(results)) for title, section in sections.items()]
    return "\n\n".join(parts) + "\n"


def storage(results: Results) -> Iterable[str]:
    """Storage of ImageNet-1K at three sizes."""
    found = results["storage_tables"]
    rows = {
        (row["ipc"], row["ratio"], row["layout"]): row
        for row in found["rows"]
        if row["dataset"] == "ImageNet-1K"
    }
    kept = found["information_kept_at_t20"]["ImageNet-1K"]["klt"]
    yield (
        "Real label batches were written in the original layout and in ours, measured on disk and scaled by "
        f"the exact number of batches. `klt` here keeps {kept:.1%} of the information at the training "
        "temperature of 20. ImageNet-1K, GiB:"
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
    heads = ("images per class", "paper", "original layout", "`f16`", "`int8`", "`klt`", "`klt`, pruned 40x")
    yield from table((*heads, "the images"), body)
    yield ""
    yield results.source("storage_tables")
    yield ""
    whole = results["storage_materialised"]
    yield (
        f"Written in full, {whole[0]['epochs']} epochs of 10 images per class are "
        + ", ".join(
            f"{one['on_disk']:.3g} GiB as {_LAYOUTS[one['layout']]} "
            f"({one['deviation']:+.2%} against the scaled size)"
            for one in whole
        )
        + f". {results.source('storage_materialised')}"
    )
    yield ""
    yield "![Label storage of published systems and of this project](../benchmarks/results/storage.png)"


def rate_distortion(results: Results) -> Iterable[str]:
    """Bytes against kept information, and the promises kept."""
    found = results["rate_distortion"]
    curve = found["curves"][0]
    wanted = ("klt 0.97 at T=20", "klt 0.96 at T=20", "klt 0.9 at T=20", "topk:50:16", "topk:10:16", "int4")
    settings = {setting["codec"]: setting for setting in curve["settings"]}
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
    yield f"{results.source('rate_distortion')}"
    yield ""
    yield "![Bytes per row against information lost](../benchmarks/results/rate_distortion.png)"


def students(results: Results) -> Iterable[str]:
    """Students of f16, klt and top-k labels."""
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
                    percent(pool, mean="top1_mean", std="top1_std"),
                ]
            )
    yield from table(("data", "labels", "label bytes per row", "kept, T=20", "top-1, %"), body)
    yield ""
    yield (
        "Three seeds, real images, all but the codec equal; top-k has the k that comes closest to the bytes "
        f"of klt. {results.source('codec_students')}"
    )


def diversity(results: Results) -> Iterable[str]:
    """Similarity within classes and distance to real images."""
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
    yield f"100 classes of Tiny-ImageNet, 10 images per class. {results.source('diversity')}"


def main() -> None:
    """Write or check."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if it is out of date")
    arguments = parser.parse_args()
    results = Results()
    if refused := results.refused():
        sys.exit("\n".join(refused))
    documents = {PAGE: page(results), README: with_figures(README.read_text(), results)}
    old = [path for path, text in documents.items() if not path.exists() or path.read_text() != text]
    if arguments.check:
        sys.exit(f"{old[0].name} is out of date: python -m benchmarks.readme" if old else None)
    for path in old:
        path.write_text(documents[path])


if __name__ == "__main__":
    main()
