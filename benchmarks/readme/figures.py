"""The README's figures, each with the command that gives it."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.readme.parts import Results, command, table

BEGIN = "<!-- figures: written by `python -m benchmarks.readme` -->"
END = "<!-- end of figures -->"


def figures(results: Results) -> Iterable[str]:
    """Yield the table."""
    body = [
        (_storage(results), command("storage_tables")),
        (_kept(results), command("rate_distortion")),
        (_accuracy(results), command("accuracy_tiny100")),
        (_reading(results), command("read_write")),
        (_replay(results), command("loader_throughput")),
        (_pruning(results), command("prune_speed")),
        (_remote(results), command("remote")),
    ]
    yield from table(("result", "measured by"), [[says, f"`{short(words)}`"] for says, words in body])


def short(words: str) -> str:
    """Return a command without the files it writes."""
    return words.split(" --json", maxsplit=1)[0]


def with_figures(readme: str, results: Results) -> str:
    """Return the README with its figures written anew."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    lines = "\n".join(figures(results))
    return f"{before}{BEGIN}\n\n{lines}\n\n{END}{after}"


def _storage(results: Results) -> str:
    rows = {
        (row["ratio"], row["layout"]): row["measured"]
        for row in results["storage_tables"]["rows"]
        if row["dataset"] == "ImageNet-1K" and row["ipc"] == 200
    }
    original, klt, pruned = rows[1, "original"], rows[1, "klt"], rows[40, "klt"]
    return (
        f"ImageNet-1K's labels at 200 images per class take {original:.0f} GiB as published, {klt:.3g} as "
        f"`klt`, and {pruned:.2g} as `klt` pruned 40x"
    )


def _kept(results: Results) -> str:
    settings = {one["codec"]: one for one in results["rate_distortion"]["curves"][0]["settings"]}
    klt = settings["klt 0.97 at T=20"]
    size, kept = klt["bytes_per_row"]["1000000"]["payload"], klt["kept"]["20"]
    return f"`klt` keeps {kept:.0%} of a real ImageNet-1K label in {size:.0f} of its 2,000 bytes"


def _accuracy(results: Results) -> str:
    """Return how much better students of klt are in the same bytes."""
    accuracy = results["accuracy_tiny100"]
    fidelity = accuracy["decisions"]["klt_fidelity"]["f16 at 40x"]
    claim = f"klt {fidelity} beats f16 in the bytes of f16 at 40x (ours)"
    (found,) = (found for found in accuracy["claims"] if found["claim"] == claim)
    return (
        f"in the bytes of `f16` labels pruned 40x, students of `klt` are {100 * found['difference']:.1f} "
        f"points better than those of `f16` (two standard errors: {100 * found['two_errors']:.1f}; "
        "100 classes of Tiny-ImageNet)"
    )


def _reading(results: Results) -> str:
    read = results["read_write"]["layouts"]["f16"]
    seconds = read["random_read"]["median_s"]
    return (
        f"a random batch of 128 x 1,000 lossless labels is read in {1e3 * seconds:.2f} ms, "
        f"{read['random_read_ratio']:.2f} of torch.load's time, from {read['bytes_ratio']:.0%} of the bytes"
    )


def _replay(results: Results) -> str:
    row = results["loader_throughput"]["end_to_end"]["224 px, 2 workers"]
    return f"views are rendered {row['speedup']:.1f} times as fast as from a pickle per batch with PIL"


def _pruning(results: Results) -> str:
    found = results["prune_speed"]
    kept = found["random, batch level"]
    return (
        f"pruning a pool of {found['pool']['bytes'] / 1e9:.0f} GB {found['ratio']}x takes "
        f"{kept['seconds']:.0f} s and {kept['peak_memory_mb']:.0f} MB of memory"
    )


def _remote(results: Results) -> str:
    found = results["remote"]
    plain, klt = found["f16:plain"], found["klt"]
    return (
        f"from S3 at {1e3 * found['latency_seconds']:.0f} ms latency, with empty cache, in random order, "
        f"`f16` labels are read at {plain['cold_of_bare']:.0%} of the rate of bare range requests, `klt` at "
        f"{klt['cold_of_local']:.0%} of the rate from the local disk"
    )
