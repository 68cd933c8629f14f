"""The command line's reference, from the commands themselves."""

from __future__ import annotations

import html
import inspect
import re

import click
from lpld_cli.main import group

PROGRAM = "lpld-labels"
INTRODUCTION = f"""# Command line

Made from the commands themselves: `{PROGRAM} COMMAND --help` says the same. Data go to stdout and messages to
stderr; exit code 0 means that all is well, 1 that something is wrong with what was given, 2 that the command
line is wrong, 130 that it was interrupted.
"""


def cli_page() -> str:
    """Return the page as Markdown: the program, then each command with usage, text and options."""
    context = click.Context(group, info_name=PROGRAM, **group.context_settings)
    parts = [INTRODUCTION, _section(group, context)]
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            parts.append(f"## {name}\n")
            parts.append(_section(command, click.Context(command, info_name=name, parent=context)))
    return "\n".join(parts)


def _section(command: click.Command, context: click.Context) -> str:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    return f"```text\n{usage}\n```\n\n{_prose(command.help or '')}\n{_options(command, context)}"


def _prose(text: str) -> str:
    """Return a help text: paragraphs, and what click prints as it stands in code blocks."""
    blocks = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if not paragraph.startswith("\b"):
            blocks.append(html.escape(" ".join(paragraph.split()), quote=False))
            continue
        title, _, rest = paragraph.removeprefix("\b").lstrip("\n").partition("\n")
        if title.endswith(":") or not rest:
            blocks.append(html.escape(title, quote=False))
            title = ""
        if rest:
            blocks.append(_code(f"{title}\n{rest}".lstrip("\n")))
    return "\n\n".join(blocks) + "\n"


def _code(text: str) -> str:
    lines = text.rstrip().splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    inside = "\n".join(line[margin:] for line in lines)
    language = "sh" if PROGRAM in inside else "text"
    return f"```{language}\n{inside}\n```"


def _options(command: click.Command, context: click.Context) -> str:
    """Return a table of the options, in the order of --help."""
    records = [record for param in command.get_params(context) if (record := param.get_help_record(context))]
    # Arguments are in the usage and explained by the text.
    rows = [f"| {_names(names)} | {_cell(meaning)} |" for names, meaning in records if meaning]
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n"


def _names(names: str) -> str:
    # A pipe between choices would end the cell; in code it cannot be escaped otherwise.
    return f"<code>{html.escape(names, quote=False).replace('|', '&#124;')}</code>"


def _cell(text: str) -> str:
    """Return a sentence in which nothing is Markdown: `[default: 0]  [x>=0]` would be a reference."""
    plain = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"[|*_`\[\]]", lambda found: f"&#{ord(found[0])};", plain)
