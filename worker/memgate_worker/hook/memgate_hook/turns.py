"""Whether a job trains several times, one training after the other: trials, folds, seeds, stages.

Then the first of them, which was watched, says little about the others. A job does not say so, but
its code does: an optimizer that is made and makes its first step in the same turn of a loop is made
again in the next turn. Loops are those of the job's own files, and of libraries that run trials;
what other libraries do in loops (Fire calls a program's main function in one) says nothing.

Where such turns have been seen a few times (an inner loop of meta-learning makes an optimizer for
each task), nothing is left to be seen. No frame is held: frames hold what the job has.
"""

from __future__ import annotations

import dis
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

#: so many turns of a loop show what others do
_ENOUGH_TURNS = 3

#: libraries whose loops are over trials
_TRIALS = ("optuna", "hyperopt", "skopt", "nevergrad", "ax", "smac")

_INSTALLED = ("site-packages", "dist-packages")
_OURS = str(Path(__file__).parent)
_STANDARD = sysconfig.get_path("stdlib")


class _Place(NamedTuple):
    """Where a call on the stack is; the number tells it from other calls of the same code."""

    number: int
    code: CodeType
    instruction: int


class Loop(NamedTuple):
    """A loop in somebody's code."""

    file: str
    line: int


class Turns:
    """Optimizers of a job, and the loops in which they are made."""

    def __init__(self) -> None:
        """Nothing was made yet."""
        self._made_at: WeakKeyDictionary[Any, list[_Place]] = WeakKeyDictionary()
        #: by the loop, and by what was called in it, down to where the optimizer is made
        self._num_turns: dict[tuple[Loop, tuple[tuple[CodeType, int], ...]], int] = {}

    def made(self, optimizer: Any, frame: FrameType | None = None) -> None:
        """An optimizer is made by whoever calls this."""
        self._made_at[optimizer] = _stack(frame or sys._getframe(1))

    def first_step(self, optimizer: Any, frame: FrameType | None = None) -> None:
        """An optimizer makes its first step."""
        made_at = self._made_at.pop(optimizer, None)
        if made_at is None:
            return
        loop = _find_loop(made_at, _stack(frame or sys._getframe(1)))
        if loop is not None:
            key = loop, tuple((place.code, place.instruction) for place in made_at)
            self._num_turns[key] = self._num_turns.get(key, 0) + 1

    @property
    def loop(self) -> str:
        """The loop in whose later turns the job trains again; empty if there is none."""
        few = [loop for (loop, _), turns in self._num_turns.items() if turns < _ENOUGH_TURNS]
        return f"{few[0].file}:{few[0].line}" if few else ""


def _stack(frame: FrameType | None) -> list[_Place]:
    """Return the calls that have not ended, the outermost first."""
    places = []
    while frame is not None:
        places.append(_Place(id(frame), frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return places[::-1]


def _find_loop(made_at: list[_Place], stepped_at: list[_Place]) -> Loop | None:
    """Return the innermost loop that both places are in, if it is one that counts."""
    found = None
    for made, stepped in zip(made_at, stepped_at):
        if made[:2] != stepped[:2]:
            break
        if _counts(made.code.co_filename):
            found = _loop_around(made.code, made.instruction, stepped.instruction) or found
        if made != stepped:  # from here on they are in different calls
            break
    return found


def _counts(file: str) -> bool:
    parts = Path(file).parts
    for folder in _INSTALLED:
        if folder in parts:
            return any(name in _TRIALS for name in parts[parts.index(folder) + 1 :][:1])
    return not file.startswith((_OURS, f"{_STANDARD}/", "<frozen"))


def _loop_around(code: CodeType, *instructions: int) -> Loop | None:
    """Return the innermost loop of a function that has all of some instructions in it."""
    around = [
        (begin, end)
        for begin, end in _loops(code)
        if all(begin <= instruction <= end for instruction in instructions)
    ]
    if not around:
        return None
    begin, _ = min(around, key=lambda loop: loop[1] - loop[0])
    lines = [line for at, line in dis.findlinestarts(code) if at <= begin and line is not None]
    return Loop(code.co_filename, lines[-1] if lines else code.co_firstlineno)


def _loops(code: CodeType) -> list[tuple[int, int]]:
    """Return where loops begin and end: at jumps back, but for those that only wait."""
    jumps = {*dis.hasjrel, *dis.hasjabs}
    return [
        (one.argval, one.offset)
        for one in dis.get_instructions(code)
        if one.opcode in jumps
        and isinstance(one.argval, int)
        and one.argval < one.offset
        and "NO_INTERRUPT" not in one.opname
    ]
