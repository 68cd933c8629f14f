"""``lpld-labels doctor``: check a machine, and measure what limits training on it."""

from __future__ import annotations

from typing import Any

import click

from lpld_core.verbs import doctor

from .console import show
from .options import verb_command


@verb_command("doctor", doctor)
def command(pool: str | None = None, *, as_json: bool, **given: Any) -> None:
    """\b
    Examples:
      lpld-labels doctor --json > report.json
      lpld-labels doctor pools/in1k --images syn/in1k --teacher resnet18 --device cuda --workers 8
    """
    result = doctor(pool, **given)
    show("This machine", result.as_json(), as_json=as_json)
    if result.failed is not None:
        click.echo(f"error: check '{result.failed}' failed: {result.checks[result.failed]}", err=True)
        click.get_current_context().exit(1)
