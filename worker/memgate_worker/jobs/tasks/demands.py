"""What a model's ``forward`` says about its arguments: in its own code, and in its docstring.

A signature says of most arguments that they are optional. The code knows better: it raises if one
is missing, or if labels are given to a model that has no loss. And where an argument is not one of
those that ``inputs`` knows, the docstring says its type and shape. No torch here.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_DESCRIBED = re.compile(
    r"^\s*(?P<name>\w+) \([`']*(?:torch\.)?(?P<kind>\w*Tensor)[`' ]*of shape[ `']*"
    r"\((?P<shape>[^()]*)\)",
    re.MULTILINE,
)

#: torch's names, by those of its older classes
_KINDS = {
    "LongTensor": "int64",
    "IntTensor": "int32",
    "BoolTensor": "bool",
    "ByteTensor": "uint8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What is raised for."""

    #: arguments that must be there, whatever the signature says
    required: frozenset[str]
    #: arguments that must not be there
    refused: frozenset[str]
    #: arguments that are used without a look whether they are there
    used: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A tensor, in the words of a docstring."""

    dtype: str
    #: names of sizes, or numbers
    shape: tuple[str, ...]


def read_demands(forward: Callable[..., Any]) -> Demands:
    """Return which arguments a forward raises without, and which it raises with."""
    try:
        source = inspect.getsource(inspect.unwrap(forward))
    except (OSError, TypeError):  # made without a file
        return Demands(required=frozenset(), refused=frozenset(), used=frozenset())
    (function,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(function, ast.FunctionDef), "a method is defined with def"
    arguments = {one.arg for one in function.args.args}
    first_set: dict[str, int] = {}
    for one in _settings(function):
        first_set[one.id] = min(one.lineno, first_set.get(one.id, one.lineno))

    def is_as_given(name: str, line: int) -> bool:
        return name in arguments and line <= first_set.get(name, line)

    checks = [one for one in _find_checks(function.body) if is_as_given(one[0], one[2])]
    used = _used_as_they_are(function)
    return Demands(
        required=frozenset(name for name, given, _ in checks if not given),
        refused=frozenset(name for name, given, _ in checks if given),
        used=frozenset(name for name, line in used if is_as_given(name, line)),
    )


def _settings(function: ast.FunctionDef) -> Iterator[ast.Name]:
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node


def _always_done(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield what is done with labels in any case; any other condition may never hold."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.If) and _asks_for_none(statement.test) == ("labels", True):
            yield from _always_done(statement.body)


def _used_as_they_are(function: ast.FunctionDef) -> set[tuple[str, int]]:
    """Return names that have methods called or are looked into, there or not; and where."""
    simple = (ast.Assign, ast.Expr, ast.Return)
    done = [one for one in _always_done(function.body) if isinstance(one, simple)]
    return {
        (node.value.id, node.lineno)
        for statement in done
        if not any(isinstance(node, ast.IfExp | ast.BoolOp) for node in ast.walk(statement))
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }


def _find_checks(statements: Sequence[ast.stmt]) -> Iterator[tuple[str, bool, int]]:
    """Yield the names for which an error is raised: if given, or if not; and where."""
    for statement in _always_done(statements):
        if isinstance(statement, ast.If) and isinstance(statement.body[0], ast.Raise):
            asked = _asks_for_none(statement.test)
            if asked is not None:
                yield *asked, statement.lineno


def _asks_for_none(test: ast.expr) -> tuple[str, bool] | None:
    """Return of ``name is not None`` the name and true, of ``name is None`` the name and false."""
    match test:
        case ast.Compare(
            left=ast.Name(id=name),
            ops=[ast.Is() | ast.IsNot() as operator],
            comparators=[ast.Constant(value=None)],
        ):
            return name, isinstance(operator, ast.IsNot)
    return None


def read_descriptions(forward: Callable[..., Any]) -> dict[str, Described]:
    """Return the tensors that a docstring gives a type and a shape."""
    return {
        found["name"]: Described(
            dtype=_KINDS.get(found["kind"], "float32"),
            shape=tuple(part.strip(" `'") for part in found["shape"].split(",") if part.strip()),
        )
        for found in _DESCRIBED.finditer(forward.__doc__ or "")
    }
