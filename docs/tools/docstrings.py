"""Docstrings of this project for the site: `name: text` lines become lists, verbs show their keywords."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe


class ArgumentLists(griffe.Extension):
    """Rewrites docstrings while the code is read; only verbs are imported."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Show a verb as it is called: the fields of its dataclass are its parameters."""
        if any(str(decorator.value).startswith("verb(") for decorator in func.decorators):
            function = getattr(importlib.import_module(func.module.path), func.name)
            found = inspect.signature(function).parameters.values()
            func.parameters = griffe.Parameters(*map(_parameter, found))
            func.docstring = griffe.Docstring(function.__doc__, parent=func)
        _rewrite(func, {parameter.name for parameter in func.parameters})

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """List a class's fields and the parameters of its constructor."""
        names = set(cls.members)
        if "__init__" in cls.members:
            names |= {parameter.name for parameter in cls["__init__"].parameters}
        _rewrite(cls, names)


def _parameter(found: inspect.Parameter) -> griffe.Parameter:
    empty = found.default is inspect.Parameter.empty
    return griffe.Parameter(
        found.name,
        annotation=inspect.formatannotation(found.annotation),
        kind=griffe.ParameterKind(found.kind.description),
        default=None if empty else repr(found.default),
    )


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
