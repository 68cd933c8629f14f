"""Reading a pickle as data: a small machine that builds lists and numbers and runs nothing.

A pickle is a program for a stack machine whose instructions may import and call anything. This one
knows only the instructions that `torch.save` writes for tensors, numbers and lists. An import only
looks a name up in a fixed table; a call only reaches the functions of that table, all of them ours.
Any other instruction or name is refused where it stands.
"""

from __future__ import annotations

import pickle
import pickletools
import struct
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
_STOP, _BINPUT, _BINGET, _BININT1 = map(ord, (pickle.STOP, pickle.BINPUT, pickle.BINGET, pickle.BININT1))
_INT32, _UINT16, _UINT32, _FLOAT64 = map(struct.Struct, ("<i", "<H", "<I", ">d"))


class PickleReader:
    """Builds the one object of a pickle.

    names: every name a pickle may ask for, as ``module.name``.
    persistent: turns a persistent id (how torch refers to a tensor's bytes) into an object.
    where: the file, for messages.
    """

    def __init__(
        self,
        program: bytes,
        *,
        names: Mapping[str, Name],
        persistent: Callable[[object], object],
        where: str,
    ) -> None:
        self._program = program
        self._at = 0
        self._names = names
        self._persistent = persistent
        self._where = where
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def read(self) -> object:
        """Return the object, made of lists, tuples, numbers, text, bytes and what the table makes."""
        program, stack, memo, steps = self._program, self._stack, self._memo, _STEPS
        try:
            while (code := program[self._at]) != _STOP:
                self._at += 1
                # Two of three instructions are one of these; a call each would double the time.
                if code == _BINPUT:
                    memo[program[self._at]] = stack[-1]
                    self._at += 1
                elif code == _BINGET:
                    stack.append(memo[program[self._at]])
                    self._at += 1
                elif code == _BININT1:
                    stack.append(program[self._at])
                    self._at += 1
                elif code in steps:
                    steps[code](self)
                else:
                    raise self._unknown(code)
            return self._result()
        except IndexError:
            raise self._damaged("it ends too early, or a value is missing") from None
        except (ValueError, TypeError, KeyError, OverflowError, struct.error) as error:
            raise self._damaged(str(error)) from None

    def _unknown(self, code: int) -> LabelFileError:
        opcode = next((op for op in pickletools.opcodes if ord(op.code) == code), None)
        if opcode is None:
            return self._damaged(f"no instruction at byte {self._at - 1}")
        return self._refused(f"the instruction {opcode.name}")

    def _damaged(self, why: str) -> LabelFileError:
        return LabelFileError(f"damaged pickle: {why}", where=self._where, hint="restore this file")

    def _refused(self, what: str) -> UnsafePickleError:
        return UnsafePickleError(
            f"pickle asks for {what}",
            where=self._where,
            expected="only tensors, numbers, lists and NumPy scalars",
            hint="nothing of it was run; do not trust this file",
        )

    # Taking bytes from the program

    def take(self, count: int) -> bytes:
        """Return the next bytes of the program."""
        start, self._at = self._at, self._at + count
        if count < 0 or self._at > len(self._program):
            raise ValueError("it ends too early")
        return self._program[start : self._at]

    def byte(self) -> int:
        """Return the next byte as a number."""
        value = self._program[self._at]
        self._at += 1
        return value

    def number(self, form: struct.Struct) -> Any:
        """Return the next number of several bytes."""
        value = form.unpack_from(self._program, self._at)[0]
        self._at += form.size
        return value

    def line(self) -> str:
        """Return text up to the end of the line."""
        end = self._program.index(b"\n", self._at)
        text = self._program[self._at : end].decode()
        self._at = end + 1
        return text

    # The stack

    def push(self, item: object) -> None:
        """Put a value on the stack."""
        self._stack.append(item)

    def pop(self) -> Any:
        """Take a value from the stack."""
        item = self._stack.pop()
        if item is _MARK:
            raise ValueError("a value is missing")
        return item

    def mark(self) -> None:
        """Remember this place on the stack."""
        self._stack.append(_MARK)

    def to_mark(self) -> list[Any]:
        """Take everything above the last mark."""
        items = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        items.reverse()
        return items

    def tuple_of(self, count: int) -> None:
        """Make a tuple of the topmost values."""
        items = [self.pop() for _ in range(count)]
        self._stack.append(tuple(reversed(items)))

    def append(self, items: list[Any]) -> None:
        """Add items to the list on top."""
        target = self._stack[-1]
        if not isinstance(target, list):
            raise TypeError("items are added to something that is not a list")
        target.extend(items)

    def put(self, place: int) -> None:
        """Remember the topmost value under a number."""
        self._memo[place] = self._stack[-1]

    def memoize(self) -> None:
        """Remember the topmost value under the next number."""
        self.put(len(self._memo))

    def get(self, place: int) -> None:
        """Put a remembered value on the stack."""
        self._stack.append(self._memo[place])

    # Names and calls: the only places where a pickle could reach the program around it

    def name(self, module: object, name: object) -> None:
        """Look up a name."""
        if not (isinstance(module, str) and isinstance(name, str)):
            raise TypeError("a name is not text")
        text = f"{module}.{name}"
        if text not in self._names:
            raise self._refused(f"'{text}'")
        self._stack.append(self._names[text])

    def stack_name(self) -> None:
        """Look up a name whose parts are on the stack."""
        name, module = self.pop(), self.pop()
        self.name(module, name)

    def call(self) -> None:
        """Call a name of the table with the tuple on top."""
        arguments, name = self.pop(), self.pop()
        if not isinstance(name, Name) or name.call is None:
            what = f"'{name.text}'" if isinstance(name, Name) else f"a {type(name).__name__}"
            raise self._refused(f"a call of {what}")
        if not isinstance(arguments, tuple):
            raise TypeError("arguments of a call are not a tuple")
        self._stack.append(name.call(*arguments))

    def build(self) -> None:
        """Give the object on top its state."""
        state, target = self.pop(), self._stack[-1]
        if not hasattr(target, "set_state"):
            raise self._refused(f"setting the state of a {type(target).__name__}")
        target.set_state(state)

    def persistent(self) -> None:
        """Replace a persistent id by its object."""
        self._stack.append(self._persistent(self.pop()))

    def _result(self) -> object:
        if len(self._stack) != 1:
            raise ValueError("it does not end with one value")
        return self._finished(self.pop(), MAX_DEPTH, {})

    def _finished(self, item: Any, depth: int, known: dict[int, object]) -> object:
        """Return the item with stateful parts replaced by their values.

        A part that occurs many times is made once: otherwise lists of the same list grow without bound.
        """
        if id(item) in known:
            return known[id(item)]
        if depth == 0:
            raise ValueError(f"lists are nested more than {MAX_DEPTH} deep")
        if isinstance(item, Name):
            raise self._refused(f"the value '{item.text}'")
        result: object = item
        if isinstance(item, list | tuple):
            result = type(item)([self._finished(part, depth - 1, known) for part in item])
        elif hasattr(item, "set_state"):
            result = item.value()
        known[id(item)] = result
        return result


_BY_OPCODE: Mapping[bytes, Callable[[PickleReader], object]] = {
    pickle.PROTO: lambda reader: reader.take(1),
    pickle.FRAME: lambda reader: reader.take(8),
    pickle.NONE: lambda reader: reader.push(None),
    pickle.NEWTRUE: lambda reader: reader.push(True),
    pickle.NEWFALSE: lambda reader: reader.push(False),
    pickle.BININT: lambda reader: reader.push(reader.number(_INT32)),
    pickle.BININT2: lambda reader: reader.push(reader.number(_UINT16)),
    pickle.LONG1: lambda reader: reader.push(
        int.from_bytes(reader.take(reader.byte()), "little", signed=True)
    ),
    pickle.BINFLOAT: lambda reader: reader.push(reader.number(_FLOAT64)),
    pickle.BINUNICODE: lambda reader: reader.push(reader.take(reader.number(_UINT32)).decode()),
    pickle.SHORT_BINUNICODE: lambda reader: reader.push(reader.take(reader.byte()).decode()),
    pickle.BINBYTES: lambda reader: reader.push(reader.take(reader.number(_UINT32))),
    pickle.SHORT_BINBYTES: lambda reader: reader.push(reader.take(reader.byte())),
    pickle.EMPTY_LIST: lambda reader: reader.push([]),
    pickle.LIST: lambda reader: reader.push(reader.to_mark()),
    pickle.APPEND: lambda reader: reader.append([reader.pop()]),
    pickle.APPENDS: lambda reader: reader.append(reader.to_mark()),
    pickle.EMPTY_TUPLE: lambda reader: reader.push(()),
    pickle.TUPLE1: lambda reader: reader.tuple_of(1),
    pickle.TUPLE2: lambda reader: reader.tuple_of(2),
    pickle.TUPLE3: lambda reader: reader.tuple_of(3),
    pickle.TUPLE: lambda reader: reader.push(tuple(reader.to_mark())),
    pickle.MARK: PickleReader.mark,
    pickle.LONG_BINPUT: lambda reader: reader.put(reader.number(_UINT32)),
    pickle.MEMOIZE: PickleReader.memoize,
    pickle.LONG_BINGET: lambda reader: reader.get(reader.number(_UINT32)),
    pickle.GLOBAL: lambda reader: reader.name(reader.line(), reader.line()),
    pickle.STACK_GLOBAL: PickleReader.stack_name,
    pickle.REDUCE: PickleReader.call,
    pickle.BUILD: PickleReader.build,
    pickle.BINPERSID: PickleReader.persistent,
}
_STEPS = {ord(code): step for code, step in _BY_OPCODE.items()}
