"""Writes the figures into docs/trust.md: `python -m tests.trust.report`; a test keeps the two in step."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.trust.figures import FILE

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "trust.md"
PEERS = PROJECT / "benchmarks" / "results" / "trust_peers.json"
_COMMANDS = {
    "damage": "python -m tests.trust.damage.campaign",
    "hostile pools": "python -m tests.trust.hostile pools",
    "hostile label-files": "python -m tests.trust.hostile label-files",
    "hostile images": "python -m tests.trust.hostile images",
    "races": "python -m tests.trust.races",
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
"""Rows of the overview, and how the names of their figures begin."""


def overview_table(figures: dict[str, list[dict[str, Any]]]) -> str:
    """Return all campaigns; beside damage, the results of other stores."""
    peers = [row for row in _peers() if "lpld-labels" not in row["store"]]
    names = " | ".join(row["store"] for row in peers)
    lines = [f"| campaign | cases | findings | {names} |", "|---" * (len(peers) + 3) + "|"]
    for what, beginning in _CAMPAIGNS.items():
        parts = [part for name, of in figures.items() if name.startswith(beginning) for part in of]
        elsewhere = [_wrong(row) if beginning == "damage" else "" for row in peers]
        counts = f"{_total(parts, 'cases'):,} | {_total(parts, 'findings')}"
        lines.append(f"| {what} | {counts} | {' | '.join(elsewhere)} |")
    return "\n".join(lines)


def _wrong(row: dict[str, Any]) -> str:
    found = row["outcomes"]["wrong labels"]
    return f"{found:,} of {row['cases']:,} gave wrong labels"


def watched_table(figures: dict[str, list[dict[str, Any]]]) -> str:
    """Return the campaigns whose cases are watched individually."""
    lines = [
        "| campaign | cases | refused | correct | findings | most memory | slowest |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, command in _COMMANDS.items():
        parts = figures.get(name, [])
        if parts:
            refused, well = (
                sum(part["kinds"].get(kind, 0) for part in parts) for kind in ("refused", "well")
            )
            hungriest, slowest = (max(part[field] for part in parts) for field in ("megabytes", "seconds"))
            counts = f"{_total(parts, 'cases'):,} | {refused:,} | {well:,} | {_total(parts, 'findings')}"
            lines.append(f"| `{command}` | {counts} | {hungriest:.0f} MB | {slowest:.1f} s |")
    return "\n".join(lines)


def disturbed_table(figures: dict[str, list[dict[str, Any]]]) -> str:
    """Return the commands that were killed, or whose disk failed."""
    lines = [
        "| command | calls | kills: cases | failures | faults: cases | failures |",
        "|---|---|---|---|---|---|",
    ]
    names = sorted({name.split(" ", 1)[1] for name in figures if name.startswith(("kills ", "faults "))})
    for name in names:
        cells = []
        for what in ("kills", "faults"):
            parts = figures.get(f"{what} {name}", [])
            cells += (
                [f"{_total(parts, 'cases'):,}", str(_total(parts, "findings"))] if parts else ["not run", ""]
            )
        some = figures.get(f"kills {name}") or figures[f"faults {name}"]
        lines.append(f"| {name} | {some[0]['calls']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def fuzz_table(figures: dict[str, list[dict[str, Any]]]) -> str:
    """Return the fuzzing targets."""
    lines = ["| target | runs | seconds | edges | lines of the parser | findings left |", "|---" * 6 + "|"]
    for name, parts in figures.items():
        if name.startswith("fuzz "):
            part = parts[-1]
            known = " of ".join(str(count) for count in part.get("lines", ())) or "not measured"
            counts = f"{part['cases']:,} | {part['seconds']} | {part['edges']} | {known} | {part['findings']}"
            lines.append(f"| {name.split(' ', 1)[1]} | {counts} |")
    return "\n".join(lines)


def soak_line(figures: dict[str, list[dict[str, Any]]]) -> str:
    """Return what the soak found, in a sentence."""
    part = figures["soak"][-1]
    rises = ", ".join(
        f"{rise:+.2f} MB (error {error:.2f})"
        for rise, error in zip(part["rise_megabytes"], part["rise_error_megabytes"], strict=True)
    )
    # Runs before the writer's rise was kept noted open files with a pool open.
    whole = len(part["rise_megabytes"]) > 4
    who, when = (" and, last, of the writer", "Between two pools at") if whole else ("", "At")
    return (
        f"{part['cases']:,} batches read by 4 workers in {part['seconds']} s, while a writer extended and "
        f"pruned through {part['generations']} pools: {part['findings']} findings. Memory of the workers"
        f"{who} from the first fifth to the end: {rises}. {when} most {part['open_files']} open files and "
        f"{part['threads']} thread each."
    )


def peers_table() -> str:
    """Return what other stores do with damage."""
    lines = ["| store | cases | " + " | ".join(_OUTCOMES) + " |", "|---" * (len(_OUTCOMES) + 2) + "|"]
    for row in _peers():
        versions = ", ".join(row["versions"].values())
        cells = " | ".join(f"{row['outcomes'][kind]:,}" for kind in _OUTCOMES)
        lines.append(f"| {row['store']} ({versions}) | {row['cases']:,} | {cells} |")
    return "\n".join(lines)


def _peers() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(PEERS.read_text())["results"]
    return found


def _total(parts: list[dict[str, Any]], field: str) -> int:
    return sum(int(part[field]) for part in parts)


def written(text: str) -> str:
    """Return the page with all tables as the figures say."""
    figures = json.loads(FILE.read_text())
    tables = {
        "overview": overview_table(figures),
        "watched": watched_table(figures),
        "disturbed": disturbed_table(figures),
        "soak": soak_line(figures),
        "fuzz": fuzz_table(figures),
        "peers": peers_table(),
    }
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = text.split(begin, 1)
        text = before + begin + "\n" + table + "\n\n" + end + rest.split(end, 1)[1]
    return text


def main() -> int:
    """Write the page again."""
    PAGE.write_text(written(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
