"""Reading a pickle as data: a small machine that builds lists and numbers and runs nothing.

A pickle is a program for a stack machine whose instructions may import and call anything. This one
knows only the instructions that `torch.save` writes for tensors, numbers and lists. An import only
looks a name up in a fixed table; a call only reaches the functions of that table, all of them ours.
Any other instruction or name is refused where it stands.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lpld_labels.errors import LabelFileError, UnsafePickleError

MAX_DEPTH = 8
"""Lists inside lists; label files need two."""


@dataclass(frozen=True)
class Name:
    """A name a pickle may ask for. `call` makes the value when the pickle calls it, None if it may not."""

    text: str
    call: Callable[..., object] | None = None


class Stateful(Protocol):
    """An object whose contents a pickle sets after making it."""

    def set_state(self, state: object) -> None:
        """Take over the state."""

    def value(self) -> object:
        """Return the finished object."""


class _Mark:
    """Where the arguments of a list or tuple start on the stack."""


_MARK = _Mark()
_NUMBERS_AND_TEXT = frozenset(
    {
        *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    }
)
_CONSTANTS: Mapping[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLE_SIZES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset({"PROTO", "FRAME"})


class PickleReader:
    """Builds the one object of a pickle.

    names: every name a pickle may ask for, as ``module.name``.
    persistent: turns a persistent id (how torch refers to a tensor's bytes) into an object.
    where: the file, for messages.
    """

    def __init__(
        self, *, names: Mapping[str, Name], persistent: Callable[[object], object], where: str
    ) -> None:
        self._names = names
        self._persistent = persistent
        self._where = where
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._steps: dict[str, Callable[[Any], None]] = {
            "MARK": lambda _: self._stack.append(_MARK),
            "EMPTY_LIST": lambda _: self._stack.append([]),
            "TUPLE": lambda _: self._stack.append(tuple(self._to_mark())),
            "LIST": lambda _: self._stack.append(self._to_mark()),
            "APPEND": lambda _: self._append([self._pop()]),
            "APPENDS": lambda _: self._append(self._to_mark()),
            "BINPUT": self._put,
            "LONG_BINPUT": self._put,
            "MEMOIZE": lambda _: self._put(len(self._memo)),
            "BINGET": self._get,
            "LONG_BINGET": self._get,
            "GLOBAL": lambda text: self._name(".".join(text.split(" ", 1))),
            "STACK_GLOBAL": lambda _: self._stack_name(),
            "REDUCE": lambda _: self._call(),
            "BUILD": lambda _: self._build(),
            "BINPERSID": lambda _: self._stack.append(self._persistent(self._pop())),
        }

    def read(self, program: bytes) -> object:
        """Return the object, made of lists, tuples, numbers, text, bytes and what the table makes."""
        try:
            for opcode, argument, _ in pickletools.genops(program):
                if opcode.name == "STOP":
                    return self._result()
                self._step(opcode.name, argument)
        except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
            raise self.damaged(str(error)) from None
        raise self.damaged("it has no end")

    def damaged(self, why: str) -> LabelFileError:
        """Return the error for a pickle that does not fit together."""
        return LabelFileError(f"damaged pickle: {why}", where=self._where, hint="restore this file")

    def refused(self, what: str) -> UnsafePickleError:
        """Return the error for a pickle that wants more than data."""
        return UnsafePickleError(
            f"pickle asks for {what}",
            where=self._where,
            expected="only tensors, numbers, lists and NumPy scalars",
            hint="nothing of it was run; do not trust this file",
        )

    def _step(self, name: str, argument: Any) -> None:
        step = self._steps.get(name)
        if step is not None:
            step(argument)
        elif name in _NUMBERS_AND_TEXT:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _TUPLE_SIZES:
            count = _TUPLE_SIZES[name]
            items = [self._pop() for _ in range(count)]
            self._stack.append(tuple(reversed(items)))
        elif name not in _IGNORED:
            raise self.refused(f"the instruction {name}")

    def _pop(self) -> Any:
        item = self._stack.pop()
        if item is _MARK:
            raise ValueError("a value is missing")
        return item

    def _to_mark(self) -> list[Any]:
        items = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        items.reverse()
        return items

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise TypeError("items are added to something that is not a list")
        target.extend(items)

    def _put(self, place: int) -> None:
        self._memo[place] = self._stack[-1]

    def _get(self, place: int) -> None:
        self._stack.append(self._memo[place])

    def _name(self, text: str) -> None:
        if text not in self._names:
            raise self.refused(f"'{text}'")
        self._stack.append(self._names[text])

    def _stack_name(self) -> None:
        name, module = self._pop(), self._pop()
        if not (isinstance(module, str) and isinstance(name, str)):
            raise TypeError("a name is not text")
        self._name(f"{module}.{name}")

    def _call(self) -> None:
        arguments, name = self._pop(), self._pop()
        if not isinstance(name, Name) or name.call is None:
            what = f"'{name.text}'" if isinstance(name, Name) else f"a {type(name).__name__}"
            raise self.refused(f"a call of {what}")
        if not isinstance(arguments, tuple):
            raise TypeError("arguments of a call are not a tuple")
        self._stack.append(name.call(*arguments))

    def _build(self) -> None:
        state, target = self._pop(), self._stack[-1]
        if not hasattr(target, "set_state"):
            raise self.refused(f"setting the state of a {type(target).__name__}")
        target.set_state(state)

    def _result(self) -> object:
        if len(self._stack) != 1:
            raise ValueError("it does not end with one value")
        return self._finished(self._pop(), MAX_DEPTH, {})

    def _finished(self, item: Any, depth: int, known: dict[int, object]) -> object:
        """Return the item with stateful parts replaced by their values.

        A part that occurs many times is made once: otherwise lists of the same list grow without bound.
        """
        if id(item) in known:
            return known[id(item)]
        if depth == 0:
            raise ValueError(f"lists are nested more than {MAX_DEPTH} deep")
        if isinstance(item, Name):
            raise self.refused(f"the value '{item.text}'")
        result: object = item
        if isinstance(item, list | tuple):
            result = type(item)(self._finished(part, depth - 1, known) for part in item)
        elif hasattr(item, "set_state"):
            result = item.value()
        known[id(item)] = result
        return result
