"""``lpld-labels verify``: check that a pool is intact and that its labels match its teacher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from lpld_core.verbs import verify
from lpld_labels.inspect.text import human_bytes

from .console import print_json, stdout_console
from .options import verb_command

if TYPE_CHECKING:
    from lpld_core.relabel.verify_teacher import TeacherCheck
    from lpld_labels.inspect.check import CheckReport


@verb_command("verify", verify)
def command(pool: str, as_json: bool, **given: Any) -> None:
    """\b
    Examples:
      lpld-labels verify pools/in1k_ipc10
      lpld-labels verify pools/from_a_stranger --strict
      lpld-labels verify pools/in1k_ipc10 --json | jq '.problems[].file'
      lpld-labels verify pools/in1k_ipc10 --images syn/in1k_ipc10 --teacher resnet18 --batches 20
    """
    result = verify(pool, **given)
    if as_json:
        print_json(result.as_json())
    else:
        _show_report(result.report)
        if result.teacher is not None:
            _show_check(result.teacher)
    click.get_current_context().exit(0 if result.good else 1)


def _show_report(report: CheckReport) -> None:
    for problem in report.problems:
        _print_verdict("damaged", f" {problem.file}: {problem.message}")
    found = len(report.problems)
    _print_verdict(
        "whole" if report.whole else f"{found} problem{'s' if found > 1 else ''}",
        f": {report.files} files, {human_bytes(report.bytes)}, {report.batches} batches, "
        f"{report.rows} rows checked",
        good=report.whole,
    )


def _show_check(check: TeacherCheck) -> None:
    for problem in check.wrong_teachers:
        _print_verdict("wrong teacher", f" {problem}")
    first = check.first_difference
    if first is not None:
        _print_verdict(
            "differs",
            f" {check.rows_above_tolerance} of {check.rows} rows, first {first.key} "
            f"slot {first.slot} ({first.image}) by {first.difference:.4g}",
        )
    ties = f" ({check.near_ties} near-ties)" if check.near_ties else ""
    _print_verdict(
        "true" if check.agrees else "not true",
        f": {check.rows} rows of {check.batches} batches labelled again, largest difference "
        f"{check.largest_difference:.3g}, top-1 agreement {100 * check.top1_agreement:.2f} %{ties}",
        good=check.agrees,
    )


def _print_verdict(word: str, text: str, *, good: bool = False) -> None:
    """Print a line whose first word is green or red."""
    from rich.markup import escape

    colour = "green" if good else "red"
    stdout_console().print(f"[{colour}]{word}[/]{escape(text)}", highlight=False, soft_wrap=True)
