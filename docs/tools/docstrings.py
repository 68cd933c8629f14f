"""Docstrings of this project for the site: `name: text` lines become lists, settings become keywords."""

from __future__ import annotations

import re
from typing import Any

import griffe


class ArgumentLists(griffe.Extension):
    """Rewrites docstrings while the code is read; nothing is imported."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Show a function that `takes_options` as it is called: its settings are keywords."""
        names = {parameter.name for parameter in func.parameters}
        for decorator in func.decorators:
            if str(decorator.value).startswith("takes_options"):
                del func.parameters["settings"]
                keywords = griffe.Parameter("settings", kind=griffe.ParameterKind.var_keyword)
                func.parameters.add(keywords)
        _rewrite(func, names)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """List a class's fields and the parameters of its constructor."""
        names = set(cls.members)
        if "__init__" in cls.members:
            names |= {parameter.name for parameter in cls["__init__"].parameters}
        _rewrite(cls, names)


def _rewrite(owner: griffe.Object, names: set[str]) -> None:
    if owner.docstring is not None:
        owner.docstring.value = as_lists(owner.docstring.value, names)


def as_lists(text: str, names: set[str]) -> str:
    """Return a docstring whose lines `name: text`, or `name, name: text`, are items of a list."""
    lines: list[str] = []
    listed = False
    for line in text.splitlines():
        match = re.match(r"((?:\w+, )*\w+): (.*)", line)
        if match and set(match[1].split(", ")) <= names:
            if not listed and lines and lines[-1]:
                lines.append("")
            heads = ", ".join(f"`{name}`" for name in match[1].split(", "))
            lines.append(f"- {heads}: {match[2]}")
            listed = True
        else:
            listed = listed and bool(line.strip())
            lines.append(f"    {line.strip()}" if listed else line)
    return "\n".join(lines)
