"""Reading a pickle as data: a small machine that builds lists and numbers and runs nothing.

A pickle is a program for a stack machine whose instructions may import and call anything. This one
knows only the instructions that `torch.save` writes for tensors, numbers and lists. An import only
looks a name up in a fixed table; a call only reaches the functions of that table, all of them ours.
Any other instruction or name is refused where it stands.

An instruction of one byte can make an object of a hundred, and a list may hold another one many times. So
both are counted: instructions, and values as often as they occur.
"""

from __future__ import annotations

import pickle
import pickletools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lpld_labels.errors import LabelFileError, UnsafePickleError

MAX_DEPTH = 8
"""Lists inside lists; label files need two."""
MAX_INSTRUCTIONS = 200_000
"""Of one pickle. Label files have a few hundred."""
MAX_VALUES = 100_000
"""Of one pickle, shared ones counted wherever they occur; an array is one."""
_SHOWN = 200
"""Characters of a name that a message repeats."""


@dataclass(frozen=True)
class Name:
    """A name a pickle may ask for. `call` makes the value when the pickle calls it, None if it may not."""

    text: str
    call: Callable[..., object] | None = None


_STOP, _BINPUT, _BINGET, _BININT1, _TUPLE2, _MARK = map(
    ord, (pickle.STOP, pickle.BINPUT, pickle.BINGET, pickle.BININT1, pickle.TUPLE2, pickle.MARK)
)
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
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def read(self) -> object:
        """Return the object, made of lists, tuples, numbers, text, bytes and what the table makes."""
        program, stack, marks, memo, steps = (
            self._program,
            self._stack,
            self._marks,
            self._memo,
            self.steps,
        )
        at = 0
        try:
            for _ in range(MAX_INSTRUCTIONS):
                code = program[at]
                at += 1
                # Two of three instructions are one of these; a call each would double the time.
                if code == _BINPUT:
                    memo[program[at]] = stack[-1]
                    at += 1
                elif code == _BINGET:
                    stack.append(memo[program[at]])
                    at += 1
                elif code == _BININT1:
                    stack.append(program[at])
                    at += 1
                elif code == _TUPLE2:
                    last = stack.pop()
                    stack[-1] = (stack[-1], last)
                elif code == _MARK:
                    marks.append(len(stack))
                elif code == _STOP:
                    return self._result()
                else:
                    self._at = at
                    steps.get(code, PickleReader._unknown)(self)
                    at = self._at
            raise self._damaged(f"it has more than {MAX_INSTRUCTIONS} instructions")
        except IndexError:
            raise self._damaged("it ends too early, or a value is missing") from None
        except (ValueError, TypeError, KeyError, OverflowError, struct.error) as error:
            raise self._damaged(str(error)) from None

    def _unknown(self) -> None:
        code = self._program[self._at - 1]
        opcode = next((op for op in pickletools.opcodes if ord(op.code) == code), None)
        if opcode is None:
            raise self._damaged(f"no instruction at byte {self._at - 1}")
        raise self._refused(f"the instruction {opcode.name}")

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

    def _take(self, count: int) -> bytes:
        start, self._at = self._at, self._at + count
        if self._at > len(self._program):
            raise ValueError("it ends too early")
        return self._program[start : self._at]

    def _number(self, form: struct.Struct) -> Any:
        value = form.unpack_from(self._program, self._at)[0]
        self._at += form.size
        return value

    def _byte(self) -> int:
        value = self._program[self._at]
        self._at += 1
        return value

    # Values

    def _proto(self) -> None:
        self._take(1)

    def _frame(self) -> None:
        self._take(8)

    def _none(self) -> None:
        self._stack.append(None)

    def _true(self) -> None:
        self._stack.append(True)

    def _false(self) -> None:
        self._stack.append(False)

    def _int32(self) -> None:
        self._stack.append(self._number(_INT32))

    def _uint16(self) -> None:
        self._stack.append(self._number(_UINT16))

    def _long(self) -> None:
        self._stack.append(int.from_bytes(self._take(self._byte()), "little", signed=True))

    def _float(self) -> None:
        self._stack.append(self._number(_FLOAT64))

    def _text(self) -> None:
        self._stack.append(self._take(self._number(_UINT32)).decode())

    def _short_text(self) -> None:
        self._stack.append(self._take(self._byte()).decode())

    def _bytes(self) -> None:
        self._stack.append(self._take(self._number(_UINT32)))

    def _short_bytes(self) -> None:
        self._stack.append(self._take(self._byte()))

    # Lists and tuples

    def _from_mark(self) -> list[Any]:
        place = self._marks.pop()
        if place > len(self._stack):
            raise ValueError("a value is missing")
        items = self._stack[place:]
        del self._stack[place:]
        return items

    def _empty_list(self) -> None:
        self._stack.append([])

    def _list(self) -> None:
        self._stack.append(self._from_mark())

    def _append(self) -> None:
        self._extend([self._stack.pop()])

    def _appends(self) -> None:
        self._extend(self._from_mark())

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise TypeError("items are added to something that is not a list")
        target.extend(items)

    def _empty_tuple(self) -> None:
        self._stack.append(())

    def _tuple(self) -> None:
        self._stack.append(tuple(self._from_mark()))

    def _tuple1(self) -> None:
        self._stack[-1] = (self._stack[-1],)

    def _tuple3(self) -> None:
        last, middle = self._stack.pop(), self._stack.pop()
        self._stack[-1] = (self._stack[-1], middle, last)

    # The memo

    def _long_put(self) -> None:
        self._memo[self._number(_UINT32)] = self._stack[-1]

    def _memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _long_get(self) -> None:
        self._stack.append(self._memo[self._number(_UINT32)])

    # Names and calls: the only places where a pickle could reach the program around it

    def _global(self) -> None:
        middle = self._program.index(b"\n", self._at)
        end = self._program.index(b"\n", middle + 1)
        module, name = self._program[self._at : end].decode().split("\n")
        self._at = end + 1
        self._look_up(module, name)

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._look_up(module, name)

    def _look_up(self, module: object, name: object) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise TypeError("a name is not text")
        text = f"{module}.{name}"
        if text not in self._names:
            raise self._refused(f"'{text[:_SHOWN]}'")
        self._stack.append(self._names[text])

    def _call(self) -> None:
        arguments, name = self._stack.pop(), self._stack.pop()
        if not isinstance(name, Name) or name.call is None:
            what = f"'{name.text}'" if isinstance(name, Name) else f"a {type(name).__name__}"
            raise self._refused(f"a call of {what}")
        if not isinstance(arguments, tuple):
            raise TypeError("arguments of a call are not a tuple")
        self._stack.append(name.call(*arguments))

    def _build(self) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if not hasattr(target, "set_state"):
            raise self._refused(f"setting the state of a {type(target).__name__}")
        target.set_state(state)

    def _persistent_id(self) -> None:
        self._stack.append(self._persistent(self._stack.pop()))

    def _result(self) -> object:
        if len(self._stack) != 1 or self._marks:
            raise ValueError("it does not end with one value")
        return self._finished(self._stack.pop(), MAX_DEPTH, {})[0]

    def _finished(self, item: Any, depth: int, known: dict[int, tuple[object, int]]) -> tuple[object, int]:
        """Return the item with stateful parts replaced by their values, and how many values it has.

        A part that occurs many times is made once, but counted every time: whoever uses the lists meets it as
        often.
        """
        if id(item) in known:
            return known[id(item)]
        if depth == 0:
            raise ValueError(f"lists are nested more than {MAX_DEPTH} deep")
        if isinstance(item, Name):
            raise self._refused(f"the value '{item.text}'")
        result, values = item, 1
        if isinstance(item, list | tuple):
            parts = [self._finished(part, depth - 1, known) for part in item]
            result, values = type(item)(part for part, _ in parts), 1 + sum(count for _, count in parts)
            if values > MAX_VALUES:
                raise ValueError(f"it repeats its lists to more than {MAX_VALUES} values")
        elif hasattr(item, "set_state"):
            result = item.value()
        known[id(item)] = result, values
        return result, values

    steps: ClassVar[Mapping[int, Callable[[PickleReader], None]]] = {
        ord(code): step
        for code, step in {
            pickle.PROTO: _proto,
            pickle.FRAME: _frame,
            pickle.NONE: _none,
            pickle.NEWTRUE: _true,
            pickle.NEWFALSE: _false,
            pickle.BININT: _int32,
            pickle.BININT2: _uint16,
            pickle.LONG1: _long,
            pickle.BINFLOAT: _float,
            pickle.BINUNICODE: _text,
            pickle.SHORT_BINUNICODE: _short_text,
            pickle.BINBYTES: _bytes,
            pickle.SHORT_BINBYTES: _short_bytes,
            pickle.EMPTY_LIST: _empty_list,
            pickle.LIST: _list,
            pickle.APPEND: _append,
            pickle.APPENDS: _appends,
            pickle.EMPTY_TUPLE: _empty_tuple,
            pickle.TUPLE: _tuple,
            pickle.TUPLE1: _tuple1,
            pickle.TUPLE3: _tuple3,
            pickle.LONG_BINPUT: _long_put,
            pickle.MEMOIZE: _memoize,
            pickle.LONG_BINGET: _long_get,
            pickle.GLOBAL: _global,
            pickle.STACK_GLOBAL: _stack_global,
            pickle.REDUCE: _call,
            pickle.BUILD: _build,
            pickle.BINPERSID: _persistent_id,
        }.items()
    }
