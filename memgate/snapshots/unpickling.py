"""The bytes of a pickle -> plain containers, strings and numbers. Nothing else can come out of it.

A pickle is a program for a small stack machine. Python's own reader has instructions that import
and call whatever the file names; this one does not have them. It knows those that make dicts,
lists, tuples, strings, bytes, numbers, booleans and None, and refuses a file at the first other
one, by its name. No part of Python's ``pickle`` is imported.

Note [Bounds]
Each instruction costs some of a budget, about the bytes that it makes Python hold, so that memory
and time end with the budget whatever the file says. What a file can still do is refer to one object
from many places, even to a container from within itself: whoever walks through the document must
count what it visits (``snapshot``), and must not compare, hash or print what is nested.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from memgate.errors import SnapshotFormatError
from memgate.snapshots.opcodes import OPCODE_NAMES
from memgate.units import MIB, format_size

#: what the document of a snapshot may take in memory, about a million events
MAX_DOCUMENT_BYTES = 1024 * MIB

#: the newest protocol of the format
_MAX_PROTOCOL = 5
#: of whole numbers: an address has 8 bytes, Python's reader would take megabytes
_MAX_INT_BYTES = 16
#: of a number or a memo index that is written out in digits
_MAX_LINE_BYTES = 64

# What instructions cost, in bytes: of memory, and for the time that the shortest take.
_COST_OF_ANY = 8
_COST_OF_NUMBER = 32
_COST_OF_TEXT = 64
_COST_OF_CONTAINER = 64
_COST_OF_PAIR = 48
_COST_OF_MEMO = 48

_INT4 = struct.Struct("<i")
_UINT2 = struct.Struct("<H")
_UINT4 = struct.Struct("<I")
_UINT8 = struct.Struct("<Q")
_DOUBLE = struct.Struct(">d")


def unpickle_plain(
    data: bytes | bytearray, *, max_document_bytes: int = MAX_DOCUMENT_BYTES
) -> object:
    """Return the object that a pickle describes, if it is a plain one.

    Raises:
        SnapshotFormatError: if it is not a pickle, is broken, has anything but plain values in it,
            or would take more than ``max_document_bytes``.
    """
    return _Machine(data, max_document_bytes).run()


class _Machine:
    """The stack machine, as far as it is safe."""

    __slots__ = ("_at", "_data", "_left", "_marks", "_max_bytes", "_memo", "_stack")

    def __init__(self, data: bytes | bytearray, max_bytes: int) -> None:
        self._data = data
        self._max_bytes = max_bytes
        self._left = max_bytes
        self._at = 0
        self._stack: list[Any] = []
        #: heights of the stack at which a container's items begin
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> object:
        """Carry out instructions until the last."""
        data, steps = self._data, _STEPS
        while True:
            if self._at >= len(data):
                raise self._broken("the file is cut off")
            opcode = data[self._at]
            self._at += 1
            self._spend(_COST_OF_ANY)
            if opcode == _STOP:
                return self._pop()
            step = steps.get(opcode)
            if step is None:
                raise self._refused(opcode)
            step(self)

    # -- the file ------------------------------------------------------------------------------

    def _take(self, size: int) -> bytes | bytearray:
        """Return the next bytes."""
        end = self._at + size
        if end > len(self._data):
            raise self._broken("the file is cut off")
        found = self._data[self._at : end]
        self._at = end
        return found

    def _number(self, layout: struct.Struct) -> Any:
        return layout.unpack(self._take(layout.size))[0]

    def _line(self) -> bytes:
        """Return the rest of a short line, and step over its end."""
        end = self._data.find(b"\n", self._at, self._at + _MAX_LINE_BYTES + 1)
        if end < 0:
            raise self._broken("a number is too long or has no end")
        found = self._take(end - self._at)
        self._at += 1
        return bytes(found)

    def _decimal(self, line: bytes) -> int:
        if not line.removeprefix(b"-").isdigit():
            raise self._broken("a whole number is none")
        return int(line)

    # -- the stack -----------------------------------------------------------------------------

    def _spend(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise SnapshotFormatError(
                f"the snapshot takes more than {format_size(self._max_bytes)} in memory; record"
                " fewer events, _record_memory_history(max_entries=100000)"
            )

    def _pop(self) -> Any:
        floor = self._marks[-1] if self._marks else 0
        if len(self._stack) <= floor:
            raise self._broken("a value is missing")
        return self._stack.pop()

    def _top(self, kind: type[Any]) -> Any:
        """Return the container on the stack that something is put into."""
        if not self._stack or type(self._stack[-1]) is not kind:
            raise self._broken(f"items are added to what is not a {kind.__name__}")
        return self._stack[-1]

    def _items(self) -> list[Any]:
        """Take all since the last mark off the stack."""
        if not self._marks:
            raise self._broken("a mark is missing")
        begin = self._marks.pop()
        items = self._stack[begin:]
        del self._stack[begin:]
        return items

    def _fill(self, target: dict[str, Any], items: list[Any]) -> None:
        if len(items) % 2:
            raise self._broken("a key has no value")
        self._spend(_COST_OF_PAIR * (len(items) // 2))
        for at in range(0, len(items), 2):
            # strings alone: numbers can be chosen so that they collide, and a tuple can be so deep
            # that hashing it ends the process
            if type(items[at]) is not str:
                raise self._broken("a key is not a string")
            target[items[at]] = items[at + 1]

    # -- instructions: plain values ------------------------------------------------------------

    def proto(self) -> None:
        version = self._take(1)[0]
        if version > _MAX_PROTOCOL:
            raise self._broken(f"protocol {version} is not known, {_MAX_PROTOCOL} is the newest")

    def frame(self) -> None:
        self._number(_UINT8)  # instructions may be read without: it is for those who read a stream

    def push(self, value: object) -> None:
        self._stack.append(value)

    def number(self, value: float) -> None:
        self._spend(_COST_OF_NUMBER)
        self._stack.append(value)

    def binint1(self) -> None:
        self._stack.append(self._take(1)[0])  # Python has one object for each of these

    def long(self, size: int) -> None:
        if size > _MAX_INT_BYTES:
            raise self._broken(f"a number has {size:,} bytes, {_MAX_INT_BYTES} at most are taken")
        self.number(int.from_bytes(self._take(size), "little", signed=True))

    def int_line(self) -> None:
        line = self._line()
        if line in (b"00", b"01"):
            self.push(line == b"01")
        else:
            self.number(self._decimal(line))

    def long_line(self) -> None:
        self.number(self._decimal(self._line().removesuffix(b"L")))

    def float_line(self) -> None:
        try:
            self.number(float(self._line()))
        except ValueError:
            raise self._broken("a number is none") from None

    def text(self, size: int) -> None:
        # a character that is not ASCII makes each of its string take up to four bytes
        found = self._take(size)
        self._spend(_COST_OF_TEXT + 4 * size)
        self._stack.append(found.decode("utf-8", "replace"))

    def text_line(self) -> None:
        end = self._data.find(b"\n", self._at)
        if end < 0:
            raise self._broken("a string has no end")
        self._spend(_COST_OF_TEXT + 4 * (end - self._at))
        try:
            self._stack.append(self._take(end - self._at).decode("raw-unicode-escape"))
        except UnicodeDecodeError:
            raise self._broken("a string is not text") from None
        self._at += 1

    def raw_bytes(self, size: int) -> None:
        found = self._take(size)
        self._spend(_COST_OF_TEXT + size)
        self._stack.append(bytes(found))

    # -- instructions: containers --------------------------------------------------------------

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def pop(self) -> None:
        # as Python's reader: with nothing above the last mark, it is the mark that goes
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._pop()

    def pop_mark(self) -> None:
        self._items()

    def dup(self) -> None:
        value = self._pop()
        self._stack += (value, value)

    def container(self, value: object) -> None:
        self._spend(_COST_OF_CONTAINER)
        self._stack.append(value)

    def tuple_of(self, size: int) -> None:
        items = [self._pop() for _ in range(size)]
        self.container(tuple(reversed(items)))

    def make_dict(self) -> None:
        made: dict[str, Any] = {}
        self._fill(made, self._items())
        self.container(made)

    def append(self) -> None:
        value = self._pop()
        self._top(list).append(value)

    def appends(self) -> None:
        items = self._items()
        self._top(list).extend(items)

    def setitem(self) -> None:
        value, key = self._pop(), self._pop()
        self._fill(self._top(dict), [key, value])

    def setitems(self) -> None:
        items = self._items()
        self._fill(self._top(dict), items)

    # -- instructions: the memo ----------------------------------------------------------------

    def put(self, index: int) -> None:
        self._spend(_COST_OF_MEMO)
        if not self._stack:
            raise self._broken("there is nothing to remember")
        self._memo[index] = self._stack[-1]

    def get(self, index: int) -> None:
        if index not in self._memo:
            raise self._broken("what was not remembered is referred to")
        self._stack.append(self._memo[index])

    # -- errors --------------------------------------------------------------------------------

    def _broken(self, problem: str) -> SnapshotFormatError:
        return SnapshotFormatError(
            f"not a memory snapshot, or a broken one: {problem} (byte {self._at:,});"
            " write it with torch.cuda.memory._dump_snapshot()"
        )

    def _refused(self, opcode: int) -> SnapshotFormatError:
        name = OPCODE_NAMES.get(opcode)
        if name is None:
            return self._broken(f"there is no opcode {opcode:#04x}")
        return SnapshotFormatError(
            f"the pickle has the opcode {name} (byte {self._at - 1:,}): refused, and nothing of it"
            " was run; a memory snapshot has dicts, lists, tuples, strings and numbers only"
        )


_STOP = 0x2E

_Step = Callable[[_Machine], None]

#: what each opcode does; the others are refused
_STEPS: dict[int, _Step] = {
    0x28: _Machine.mark,
    0x29: lambda machine: machine.push(()),
    0x30: _Machine.pop,
    0x31: _Machine.pop_mark,
    0x32: _Machine.dup,
    0x42: lambda machine: machine.raw_bytes(machine._number(_UINT4)),
    0x43: lambda machine: machine.raw_bytes(machine._take(1)[0]),
    0x46: _Machine.float_line,
    0x47: lambda machine: machine.number(machine._number(_DOUBLE)),
    0x49: _Machine.int_line,
    0x4A: lambda machine: machine.number(machine._number(_INT4)),
    0x4B: _Machine.binint1,
    0x4C: _Machine.long_line,
    0x4D: lambda machine: machine.number(machine._number(_UINT2)),
    0x4E: lambda machine: machine.push(None),
    0x56: _Machine.text_line,
    0x58: lambda machine: machine.text(machine._number(_UINT4)),
    0x5D: lambda machine: machine.container([]),
    0x61: _Machine.append,
    0x64: _Machine.make_dict,
    0x65: _Machine.appends,
    0x67: lambda machine: machine.get(machine._decimal(machine._line())),
    0x68: lambda machine: machine.get(machine._take(1)[0]),
    0x6A: lambda machine: machine.get(machine._number(_UINT4)),
    0x6C: lambda machine: machine.container(machine._items()),
    0x70: lambda machine: machine.put(machine._decimal(machine._line())),
    0x71: lambda machine: machine.put(machine._take(1)[0]),
    0x72: lambda machine: machine.put(machine._number(_UINT4)),
    0x73: _Machine.setitem,
    0x74: lambda machine: machine.container(tuple(machine._items())),
    0x75: _Machine.setitems,
    0x7D: lambda machine: machine.container({}),
    0x80: _Machine.proto,
    0x85: lambda machine: machine.tuple_of(1),
    0x86: lambda machine: machine.tuple_of(2),
    0x87: lambda machine: machine.tuple_of(3),
    0x88: lambda machine: machine.push(True),
    0x89: lambda machine: machine.push(False),
    0x8A: lambda machine: machine.long(machine._take(1)[0]),
    0x8B: lambda machine: machine.long(machine._number(_UINT4)),
    0x8C: lambda machine: machine.text(machine._take(1)[0]),
    0x8D: lambda machine: machine.text(machine._number(_UINT8)),
    0x8E: lambda machine: machine.raw_bytes(machine._number(_UINT8)),
    0x94: lambda machine: machine.put(len(machine._memo)),
    0x95: _Machine.frame,
}
