"""Writes the figures into docs/trust.md: `python -m tests.trust.report`; a test keeps the two in step."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.trust.figures import FILE

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "trust.md"
PEERS = PROJECT / "benchmarks" / "results" / "trust_peers.json"
Parts = Sequence[dict[str, Any]]
Figures = dict[str, list[dict[str, Any]]]
_COMMANDS = {
    "damage": "damage.campaign",
    "hostile pools": "hostile pools",
    "hostile label-files": "hostile label-files",
    "hostile images": "hostile images",
    "races": "races",
}
_OUTCOMES = ("right", "refused", "wrong labels", "died", "hung")
_CAMPAIGNS = {
    "damaged files": "damage",
    "pools from strangers": "hostile pools",
    "pickles and zips from strangers": "hostile label-files",
    "images from strangers": "hostile images",
    "kills, Ctrl-C, torn writes": "kills",
    "disks that fail, fill up or slow down": "faults",
    "several writers and readers": "races",
    "reading without end (batches)": "soak",
    "fuzzing (inputs)": "fuzz",
}
"""What befalls pools, and how the names of its figures begin."""


def _table(titles: str, rows: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown; titles have bars between them."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join([f"| {titles} |", "|---" * (titles.count("|") + 1) + "|", *lines])


def _total(parts: Parts, field: str) -> int:
    return sum(int(part[field]) for part in parts)


def overview_table(figures: Figures, stores: Parts) -> str:
    """All campaigns, and beside them what other stores do where the same can befall them."""
    others = [row for row in stores if "lpld-labels" not in row["store"]]
    wrong = [f"{row['outcomes']['wrong labels']:,} of {row['cases']:,} gave wrong labels" for row in others]
    rows = []
    for what, beginning in _CAMPAIGNS.items():
        parts = [part for name, of in figures.items() if name.startswith(beginning) for part in of]
        elsewhere = wrong if beginning == "damage" else [""] * len(others)
        rows.append([what, f"{_total(parts, 'cases'):,}", _total(parts, "findings"), *elsewhere])
    return _table(" | ".join(["campaign", "cases", "findings", *(row["store"] for row in others)]), rows)


def watched_table(figures: Figures) -> str:
    """Campaigns whose cases are watched individually."""
    rows = []
    for name, command in _COMMANDS.items():
        parts = figures[name]
        refused, well = (sum(part["kinds"].get(kind, 0) for part in parts) for kind in ("refused", "well"))
        hungriest, slowest = (max(part[field] for part in parts) for field in ("megabytes", "seconds"))
        counts = [f"{_total(parts, 'cases'):,}", f"{refused:,}", f"{well:,}", _total(parts, "findings")]
        rows.append(
            [f"`python -m tests.trust.{command}`", *counts, f"{hungriest:.0f} MB", f"{slowest:.1f} s"]
        )
    return _table("campaign | cases | refused | correct | findings | most memory | slowest", rows)


def disturbed_table(figures: Figures) -> str:
    """Commands that were killed, or whose disk failed."""
    rows = []
    for name in sorted({name.split(" ", 1)[1] for name in figures if name.startswith(("kills ", "faults "))}):
        row: list[object] = [name, ""]
        for what in ("faults", "kills"):
            parts = figures.get(f"{what} {name}", [])
            if parts:
                row[1] = parts[0]["calls"]
            cells = [f"{_total(parts, 'cases'):,}", _total(parts, "findings")] if parts else ["not run", ""]
            row[2:2] = cells
        rows.append(row)
    return _table("command | calls | kills: cases | failures | faults: cases | failures", rows)


def fuzz_table(figures: Figures) -> str:
    """Fuzzing targets."""
    rows = []
    for name, parts in figures.items():
        if name.startswith("fuzz "):
            part = parts[-1]
            lines = " of ".join(map(str, part["lines"]))
            cells = [f"{part['cases']:,}", part["seconds"], part["edges"], lines, part["findings"]]
            rows.append([name.removeprefix("fuzz "), *cells])
    return _table("target | runs | seconds | edges | lines of the parser | findings left", rows)


def soak_line(figures: Figures) -> str:
    """What the soak found, in a sentence."""
    part = figures["soak"][-1]
    rises = ", ".join(
        f"{rise:+.2f} MB (error {error:.2f})"
        for rise, error in zip(part["rise_megabytes"], part["rise_error_megabytes"], strict=True)
    )
    return (
        f"{part['cases']:,} batches read by 4 workers in {part['seconds']} s, while a writer extended and "
        f"pruned through {part['generations']} pools: {part['findings']} findings. Memory of the workers "
        f"and, last, of the writer from the first fifth to the end: {rises}. Between two pools at most "
        f"{part['open_files']} open files and {part['threads']} thread each."
    )


def peers_table(stores: Parts) -> str:
    """What other stores do with damage."""
    rows = []
    for row in stores:
        name = f"{row['store']} ({', '.join(row['versions'].values())})"
        rows.append([name, f"{row['cases']:,}", *(f"{row['outcomes'][kind]:,}" for kind in _OUTCOMES)])
    return _table(" | ".join(["store", "cases", *_OUTCOMES]), rows)


def written(text: str) -> str:
    """Return the page with all tables as the figures say."""
    figures: Figures = json.loads(FILE.read_text())
    stores: Parts = json.loads(PEERS.read_text())["results"]
    tables = {
        "overview": overview_table(figures, stores),
        "watched": watched_table(figures),
        "disturbed": disturbed_table(figures),
        "soak": soak_line(figures),
        "fuzz": fuzz_table(figures),
        "peers": peers_table(stores),
    }
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = text.split(begin, 1)
        text = before + begin + "\n" + table + "\n\n" + end + rest.split(end, 1)[1]
    return text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
