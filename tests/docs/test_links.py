"""Links of the documents lead somewhere; commands that they show are commands."""

import re
from pathlib import Path

import click
import pytest
from lpld_cli.main import group

from tests.docs.documents import DOCUMENTS, NAMES, PROJECT, anchors, blocks, commands, links

SITE_ONLY = {"docs/reference/cli.md"}
"""Pages that exist on the site only; its strict build checks links to them."""


def broken(document: Path) -> list[str]:
    """Return the links of a document that lead nowhere."""
    bad = []
    for link in links(document.read_text()):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if target.is_relative_to(PROJECT) and target.relative_to(PROJECT).as_posix() in SITE_ONLY:
            continue
        outside = not target.is_relative_to(PROJECT)
        if outside or not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            bad.append(link)
    return bad


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_every_internal_link_resolves(document: Path) -> None:
    assert broken(document) == []


def complaint(words: list[str]) -> str | None:
    """Return what the command line says against a command without running it. `...` stands for more."""
    elided = "..." in words
    context = click.Context(group, info_name="lpld-labels")
    _, rest, _ = group.make_parser(context).parse_args([word for word in words if word != "..."])
    command = group.get_command(context, rest[0]) if rest else None
    if command is None:
        return f"no such command {rest[0]}" if rest else None
    try:
        # A variable stands for a number.
        command.make_context(
            rest[0], [re.sub(r"\$\w+|\$\{\w+\}", "1", word) for word in rest[1:]], parent=context
        )
    except click.exceptions.Exit:  # --help
        return None
    except click.MissingParameter as error:
        return None if elided else error.format_message()
    except click.UsageError as error:
        return error.format_message()
    return None


SHOWN = [
    (name, words[1:])
    for name, document in zip(NAMES, DOCUMENTS, strict=True)
    for words in commands(
        "".join(b.code for b in blocks(document.read_text()) if b.language in {"sh", "bash"})
    )
    if words[0] == "lpld-labels"
]


@pytest.mark.parametrize(
    ("name", "words"), SHOWN, ids=lambda part: part if isinstance(part, str) else part[0]
)
def test_every_command_shown_is_one(name: str, words: list[str]) -> None:
    assert complaint(words) is None, name


def test_wrong_commands_are_found() -> None:
    assert len(SHOWN) > 40
    assert complaint(["prune", "pool", "out", "--rato", "40"])
    assert complaint(["prune", "pool", "..."]) is None
