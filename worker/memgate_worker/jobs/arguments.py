"""A constructor -> the keyword arguments that it uses.

Signatures do not say which: builders of torchvision and timm hand ``**kwargs`` on to a class,
configurations of transformers take what they know out of them, and some classes take any argument
and ignore it. So the source is read: what a function declares, what it looks up in its
``**kwargs``, and the same for the functions that it hands them on to. What cannot be followed is
left out.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache, partial
from types import FunctionType
from typing import Any, get_args, get_type_hints

#: methods of dictionaries whose first argument is a name that is looked up
_LOOKUPS = frozenset({"get", "pop", "setdefault"})

#: functions that return a changed copy of what they are given
_COPIES = frozenset({"dict", "replace", "copy", "deepcopy"})

#: methods that make an object
_CONSTRUCTORS = ("__init__", "__post_init__")


def declared_arguments(constructor: Callable[..., Any]) -> frozenset[str]:
    """Return what a function, or a class and its bases, declares: quick, but incomplete."""
    if not inspect.isclass(constructor):
        return _declared(_unwrap(constructor))
    found = (_unwrap(vars(owner)["__init__"]) for owner in constructor.__mro__ if _has_init(owner))
    return frozenset().union(*map(_declared, found))


@lru_cache(maxsize=256)
def find_arguments(constructor: Callable[..., Any]) -> frozenset[str]:
    """Return the names of all keyword arguments that a function or a class uses."""
    reading = _Reading()
    reading.read_callable(constructor, {})
    return frozenset(reading.names)


def _has_init(owner: type) -> bool:
    return isinstance(vars(owner).get("__init__"), FunctionType)


def _unwrap(called: Any) -> Any:
    return inspect.unwrap(getattr(called, "__func__", called))


def _declared(function: Any) -> frozenset[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return frozenset()
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return frozenset(one.name for one in parameters if one.kind in kinds) - {"self"}


def _fields_of_records(function: FunctionType) -> Iterator[str]:
    """Yield the fields of the dataclasses that a function takes."""
    try:
        hints = get_type_hints(function)
    except Exception:  # from names that exist only for type checkers
        hints = {}
    for hint in hints.values():
        for one in (hint, *get_args(hint)):
            if inspect.isclass(one) and is_dataclass(one):
                yield from (part.name for part in fields(one))


@lru_cache(maxsize=64)
def _functions(filename: str) -> dict[int, ast.AST]:
    """Return the functions in a file by the line on which they begin, decorators included."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return {}
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {
        min([node.lineno, *(one.lineno for one in node.decorator_list)]): node for node in found
    }


def _body(function: FunctionType) -> ast.AST | None:
    code = function.__code__
    return _functions(code.co_filename).get(code.co_firstlineno)


#: the callables that a function is given: what a parameter may be
_Given = dict[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _Frame:
    """A function, and what is known about how it is called."""

    function: FunctionType
    #: variables that hold all or some of the arguments it does not declare
    holders: frozenset[str]
    #: functions and classes that it is given, by parameter
    given: _Given
    #: of a method: the class of the object that is made, and the class that has the method
    made: type | None = None
    owner: type | None = None


@dataclass(slots=True)
class _Reading:
    """What was found so far."""

    names: set[str] = field(default_factory=set)
    seen: set[Any] = field(default_factory=set)

    def read_callable(self, called: Any, given: _Given) -> None:
        """Read a function or a class that is given arguments by name."""
        if isinstance(called, partial):
            called = called.func
        if not inspect.isclass(called):
            self._read_function(_unwrap(called), given)
            return
        if is_dataclass(called):
            self.names |= {one.name for one in fields(called) if one.init}
        for method in _CONSTRUCTORS:
            self.read_method(method, called, None, given)

    def read_method(self, name: str, made: type, below: type | None, given: _Given) -> None:
        """Read a method of a class, or (``below`` a class that has it) the next one up."""
        order = made.__mro__
        for owner in order if below is None else order[order.index(below) + 1 :]:
            if name in vars(owner):
                self._read_function(_unwrap(vars(owner)[name]), given, made, owner)
                return

    def _read_function(
        self, function: Any, given: _Given, made: type | None = None, owner: Any = None
    ) -> None:
        if not isinstance(function, FunctionType):
            return
        self.names |= _declared(function)
        parameters = inspect.signature(function).parameters.values()
        holders = frozenset(one.name for one in parameters if one.kind is one.VAR_KEYWORD)
        if holders:  # which may be merged into a record that it also takes
            self.names |= set(_fields_of_records(function))
        self.read_frame(_Frame(function, holders, given, made, owner))

    def read_frame(self, frame: _Frame) -> None:
        """Read what a function's body does with arguments that it does not declare."""
        key = (frame.function, frame.made, frame.holders, *sorted(frame.given))
        body = _body(frame.function)
        if frame.holders and body is not None and key not in self.seen:
            self.seen.add(key)
            _Body(self, frame, body).read()


class _Body:
    """The body of a function that holds arguments it does not declare."""

    def __init__(self, reading: _Reading, frame: _Frame, body: ast.AST) -> None:
        self._reading = reading
        self._frame = frame
        self._nodes = list(ast.walk(body))
        self._holders = set(frame.holders)
        assigned = [node for node in self._nodes if isinstance(node, ast.Assign)]
        for node in sorted(assigned, key=lambda one: one.lineno):
            if self._holds(node.value):
                self._holders |= {one.id for one in node.targets if isinstance(one, ast.Name)}
        self._holders |= set(self._updated())

    def _updated(self) -> Iterator[str]:
        """Yield the dictionaries that the arguments are put into."""
        for node in self._nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                target = node.func.value
                if node.func.attr == "update" and isinstance(target, ast.Name):
                    yield from [target.id] if self._is_handed_on(node) else []

    def read(self) -> None:
        """Find what is looked up, and where the arguments are handed on to."""
        for node in self._nodes:
            if isinstance(node, ast.Call):
                self._read_call(node)
            elif isinstance(node, ast.Subscript) and self._holds(node.value):
                self._note(node.slice)
            elif isinstance(node, ast.Compare) and any(map(self._holds, node.comparators)):
                self._note(node.left)

    def _holds(self, node: ast.AST | None) -> bool:
        """Say whether an expression is the arguments, or a copy that contains them."""
        if isinstance(node, ast.Name):
            return node.id in self._holders
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            return any(key is None and self._holds(one) for key, one in pairs)
        if isinstance(node, ast.DictComp):
            return any(self._is_items(one.iter) for one in node.generators)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            func = node.func
            name = func.id if isinstance(func, ast.Name) else func.attr
            is_copied = isinstance(func, ast.Attribute) and self._holds(func.value)
            return name in _COPIES and (is_copied or self._is_handed_on(node))
        return False

    def _is_items(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and (
            isinstance(node.func, ast.Attribute) and self._holds(node.func.value)
        )

    def _is_handed_on(self, call: ast.Call) -> bool:
        return self._is_spread(call) or any(map(self._holds, call.args))

    def _is_spread(self, call: ast.Call) -> bool:
        return any(one.arg is None and self._holds(one.value) for one in call.keywords)

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self._reading.names.add(node.value)

    def _read_call(self, call: ast.Call) -> None:
        func, frame = call.func, self._frame
        if isinstance(func, ast.Attribute) and self._holds(func.value):
            if func.attr in _LOOKUPS and call.args:
                self._note(call.args[0])
        elif self._is_handed_on(call):
            if isinstance(func, ast.Attribute) and _is_super(func.value) and frame.made:
                assert frame.owner is not None
                self._reading.read_method(func.attr, frame.made, frame.owner, {})
            for called in self._resolve(func):
                self._hand_on(called, call)

    def _hand_on(self, called: Any, call: ast.Call) -> None:
        given = self._given(called, call)
        if self._is_spread(call):
            self._reading.read_callable(called, given)
        function = _unwrap(called)
        if isinstance(function, FunctionType):  # which may be given them as a dictionary
            parameters = list(inspect.signature(function).parameters)
            pairs = zip(parameters, call.args, strict=False)
            holders = frozenset(name for name, one in pairs if self._holds(one))
            self._reading.read_frame(_Frame(function, holders, given))

    def _given(self, called: Any, call: ast.Call) -> _Given:
        """Return the functions and classes that are handed on, by the parameter they are for."""
        try:
            names = list(inspect.signature(called).parameters)
        except (TypeError, ValueError):
            return {}
        handed = [
            *zip(names, call.args, strict=False),
            *((one.arg, one.value) for one in call.keywords if one.arg is not None),
        ]
        return {name: tuple(self._resolve(node)) for name, node in handed}

    def _resolve(self, node: ast.AST) -> Iterator[Any]:
        """Yield the functions and classes that an expression may mean."""
        if isinstance(node, ast.IfExp):
            yield from self._resolve(node.body)
            yield from self._resolve(node.orelse)
        elif isinstance(node, ast.Attribute):
            for parent in self._resolve(node.value):
                yield getattr(parent, node.attr, None)
        elif isinstance(node, ast.Name):
            known = self._frame.function.__globals__.get(node.id)
            if node.id == "self" and self._frame.made is not None:
                yield self._frame.made
            elif found := self._frame.given.get(node.id):
                yield from found
            elif callable(known):
                yield known
            else:
                yield from self._resolve_variable(node.id)

    def _resolve_variable(self, name: str) -> Iterator[Any]:
        for node in self._nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.IfExp):
                is_it = any(isinstance(one, ast.Name) and one.id == name for one in node.targets)
                if is_it and not any(
                    isinstance(one, ast.Name) and one.id == name for one in ast.walk(node.value)
                ):
                    yield from self._resolve(node.value)


def _is_super(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    )
