"""The table at the top of the results: every claim, what we found, the paper's figure, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.demo.table import Finding
from benchmarks.pruning_law.rows import PAPER
from benchmarks.readme.parts import Results, table

Row = tuple[str, str, str, str]
"""Claim, ours, paper, verdict."""
CLOSE = 0.05
"""Share by which sizes in the original layout may differ from the paper's."""
PAPERS_OWN = ("class-wise beats", "ILP beats", "random pruning")
"""How claims of the paper begin that have no figure here."""


def verdicts(results: Results) -> Iterator[str]:
    """Yield the table."""
    students = sorted(student_rows(results), key=lambda row: not row[2])  # the paper's claims first
    body = [*_storage(results), *students, *_codecs(results), *_demo(results)]
    yield from table(("claim", "ours", "paper", "verdict"), [[*row[:3], f"**{row[3]}**"] for row in body])


def student_rows(results: Results) -> Iterator[Row]:
    """Yield claims about students."""
    for one in results["accuracy_tiny100"]["claims"]:
        claim = f"{one['claim'].removesuffix(' (ours)')}; 100 classes"
        ours = f"{one['detail'].partition(' (')[0]} (+/- {100 * one['two_errors']:.1f})"
        yield claim, ours, _papers(claim), one["verdict"]


def _papers(claim: str) -> str:
    """Return the paper's figure, "yes" if the paper claims this without one here, or nothing."""
    if claim.startswith("10x costs little") and "(lpld" in claim:
        data, _, _, tables = PAPER[0]
        ipc, (full, pruned, *_) = next(iter(tables.items()))
        return f"{full}% to {pruned}% ({data}, IPC {ipc})"
    return "yes" * claim.startswith(PAPERS_OWN)


def _storage(results: Results) -> Iterator[Row]:
    rows = [
        row for row in results["storage_tables"]["rows"] if row["ratio"] == 1 and row["layout"] == "original"
    ]
    for name in dict.fromkeys(row["dataset"] for row in rows):
        here = [row for row in rows if row["dataset"] == name]
        sizes, worst = [row["paper"] for row in here], max(abs(row["deviation"]) for row in here)
        simulated = ", simulated labels" * (name == "ImageNet-21K-P")
        yield (
            f"labels of {name} have the paper's size in the original layout{simulated}",
            f"off by {worst:.1%} at most",
            f"{min(sizes):,.4g} to {max(sizes):,.4g} {here[0]['unit'][0]}iB",
            _word(worst <= CLOSE),
        )


def _codecs(results: Results) -> Iterator[Row]:
    for claim in results["rate_distortion"]["claims"]:
        labels = "simulated labels" if "10450" in claim["text"] else "ImageNet-1K labels"
        yield f"{claim['text']}; {labels}", claim["found"], "", _word(claim["holds"])


def _demo(results: Results) -> Iterator[Row]:
    for one in results["demo"]["findings"]:
        found = Finding(**one)
        yield f"{found.claim}; the demo", found.found, "", found.verdict


def _word(holds: bool) -> str:
    return "holds" if holds else "does not hold"
