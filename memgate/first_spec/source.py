"""The source of a training script -> what can be read off it: options, calls, constants.

Read by ``ast``, never executed, so a value is known where it is written down: as a literal, as the
default of an option, or as a constant of the module. What is computed is not known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memgate.errors import InputError

#: no script that people write is longer; the parser's time and memory grow with it
MAX_SOURCE_LENGTH = 1 << 20

#: how deep a chain of names such as ``a.b.c`` may be
_MAX_NAMES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A setting of the script with a default: of its command line, a dataclass, or a constant."""

    name: str
    value: Any
    line: int
    #: how people see it: ``--batch-size``, or the name itself
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCall:
    """A call of something whose full name is known, such as ``torch.optim.AdamW``."""

    name: str
    line: int
    #: those that are known; an unknown one is missing
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    #: names of the keywords that are given, known or not
    given: frozenset[str]

    @property
    def last(self) -> str:
        """The name without where it is from."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A part of an object that a script sets to what it makes: ``model.fc = Linear(...)``."""

    #: from the object on, without indices: ``fc``, ``roi_heads.box_predictor``
    part: str
    made: SourceCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """An optimizer's step that is made in some turns of a loop only."""

    #: None if it is computed
    every: int | None
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a script says."""

    options: Mapping[str, Option]
    calls: Sequence[SourceCall]
    #: full names of what is set, such as ``torch.backends.cudnn.benchmark``, to what
    assigned: Mapping[str, Any]
    replacements: Sequence[Replacement]
    accumulation: Accumulation | None
    #: full names of what is imported
    imported: frozenset[str]

    def find(self, *names: str) -> Option | None:
        """Return the first of these options that the script has and whose default is known."""
        known = (self.options.get(name) for name in names)
        return next((one for one in known if one is not None and one.value is not None), None)

    def called(self, *names: str) -> SourceCall | None:
        """Return the first call of something with one of these last names."""
        return next((call for call in self.calls if call.last in names), None)


class Unknown:
    """A value that is computed."""


_UNKNOWN = Unknown()


def read_source(text: str) -> Source:
    """Read a script.

    Raises:
        InputError: if it is not Python of this version, or too long.
    """
    if len(text) > MAX_SOURCE_LENGTH:
        raise InputError(f"a script may have {MAX_SOURCE_LENGTH} characters; this has {len(text)}")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        place = f" in line {line}" if line else ""
        raise InputError(f"this is not Python: {getattr(error, 'msg', error)}{place}") from None
    nodes = list(ast.walk(tree))
    reader = _Reader(nodes)
    options = {one.name: one for one in reversed(list(reader.options(tree)))}
    # of a constant, the name as it is written; of an option, as its parser has it
    reader.known = {one: option.value for option in options.values() for one in _names(option)}
    return Source(
        options=options,
        calls=tuple(reader.calls()),
        assigned=dict(reader.assigned()),
        replacements=tuple(reader.replacements()),
        accumulation=next(reader.accumulations(), None),
        imported=frozenset(reader.imported.values()),
    )


class _Reader:
    """The nodes of a script, and what its names stand for."""

    def __init__(self, nodes: list[ast.AST]) -> None:
        self._nodes = nodes
        self.imported = dict(_imports(nodes))
        self.known: dict[str, Any] = {}

    def options(self, tree: ast.Module) -> Iterator[Option]:
        """Yield the settings of the script."""
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = self.value(node.value)
                if isinstance(value, bool | int | float | str):
                    name = node.targets[0].id
                    yield _option(name, value, node)
        for inner in self._nodes:
            if isinstance(inner, ast.ClassDef):
                yield from self._fields(inner)
            elif isinstance(inner, ast.FunctionDef):
                yield from self._parameters(inner)
            elif isinstance(inner, ast.Call):
                yield from self._declared(inner)

    def _fields(self, node: ast.ClassDef) -> Iterator[Option]:
        if "dataclass" not in self._decorators(node):
            return
        for one in node.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.value:
                yield _option(one.target.id, self._default(one.value), one)

    def _parameters(self, node: ast.FunctionDef) -> Iterator[Option]:
        """Of a command of typer; other functions are given their arguments by the script."""
        if node.name != "main" and self._decorators(node).isdisjoint({"command", "callback"}):
            return
        positional = [*node.args.posonlyargs, *node.args.args]
        pairs = [
            *zip(positional[::-1], node.args.defaults[::-1], strict=False),
            *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
        ]
        for argument, default in pairs:
            if default is not None:
                yield _option(argument.arg, self._default(default), argument)

    def _decorators(self, node: ast.ClassDef | ast.FunctionDef) -> set[str]:
        """Return the last names of what decorates a class or a function."""
        plain = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
        return {(self.name(one) or "").rpartition(".")[2] for one in plain}

    def _declared(self, node: ast.Call) -> Iterator[Option]:
        """Of argparse and click: ``--name``, ``default=``; of absl: ``DEFINE_x(name, value)``."""
        last = (self.name(node.func) or "").rpartition(".")[2]
        words = [self.value(one) for one in node.args]
        if last in ("add_argument", "option"):
            flags = [word for word in words if isinstance(word, str) and word.startswith("--")]
            default = self._keyword(node, "default")
            if self._keyword(node, "action") == "store_true" and isinstance(default, Unknown):
                default = False
            for flag in flags:
                yield _option(flag.lstrip("-"), default, node, shown=flag)
        elif last.startswith("DEFINE_") and len(words) > 1 and isinstance(words[0], str):
            yield _option(words[0], words[1], node, shown=f"--{words[0]}")

    def _default(self, node: ast.expr) -> Any:
        """Return the default of ``field(default=1)`` or ``typer.Option(1)``, or the value."""
        if not isinstance(node, ast.Call):
            return self.value(node)
        given = self._keyword(node, "default")
        if isinstance(given, Unknown) and node.args:
            return self.value(node.args[0])
        return given

    def _keyword(self, node: ast.Call, name: str) -> Any:
        found = [one.value for one in node.keywords if one.arg == name]
        return self.value(found[0]) if found else _UNKNOWN

    def calls(self) -> Iterator[SourceCall]:
        """Yield the calls, in the order of the script."""
        for node in sorted(self._calls(), key=lambda one: (one.lineno, one.col_offset)):
            if (call := self._call(node)) is not None:
                yield call

    def _call(self, node: ast.Call) -> SourceCall | None:
        name = self.name(node.func)
        if name is None:
            return None
        keywords = {one.arg: self.value(one.value) for one in node.keywords if one.arg}
        arguments = [self.value(one) for one in node.args]
        return SourceCall(
            name=name,
            line=node.lineno,
            arguments=tuple(None if isinstance(one, Unknown) else one for one in arguments),
            keywords={k: v for k, v in keywords.items() if not isinstance(v, Unknown)},
            given=frozenset(keywords),
        )

    def replacements(self) -> Iterator[Replacement]:
        """Yield the parts of objects that are set to something that is made there."""
        for node in self._nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                owner, _, part = _path(node.targets[0]).partition(".")
                if owner == "self":  # a class of the script: what it has are objects
                    _, _, part = part.partition(".")
                made = self._call(node.value)
                if part and made is not None:
                    yield Replacement(part=part, made=made)

    def accumulations(self) -> Iterator[Accumulation]:
        """Yield where a step of an optimizer depends on the number of the turn."""
        for node in self._nodes:
            if not isinstance(node, ast.If):
                continue
            turns = [
                one
                for one in ast.walk(node.test)
                if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod)
            ]
            inner = (one for statement in node.body for one in ast.walk(statement))
            if turns and any(map(_is_step, inner)):
                every = self.value(turns[0].right)
                known = every if isinstance(every, int) else None
                yield Accumulation(every=known, line=node.lineno)

    def _calls(self) -> list[ast.Call]:
        return [node for node in self._nodes if isinstance(node, ast.Call)]

    def assigned(self) -> Iterator[tuple[str, Any]]:
        """Yield what is set by a full name."""
        for node in self._nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                yield self.name(node.targets[0]) or "", self.value(node.value)

    def name(self, node: ast.expr) -> str | None:
        """Return the full name of what is meant; of an object that is computed, its last part."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute) and len(parts) < _MAX_NAMES:
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            parts.append(self.imported.get(node.id, node.id))
        return ".".join(reversed(parts)) if parts else None

    def value(self, node: ast.expr) -> Any:
        """Return a value that is written down, or is the default of an option; else an unknown."""
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
        if isinstance(node, ast.Name | ast.Attribute):
            name = self.name(node) or ""
            if name.startswith("torch."):
                return name
            return self.known.get(name.rpartition(".")[2], _UNKNOWN)
        return _UNKNOWN


def _path(node: ast.expr) -> str:
    """Return the names of ``a.b[0].c``, without indices; none of what is computed."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript) and len(parts) < _MAX_NAMES:
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _is_step(node: ast.AST) -> bool:
    """Say whether a node is ``optimizer.step()`` or ``scaler.step(optimizer)``, by their names."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    words = [_path(one).lower() for one in (node.func.value, *node.args[:1])]
    return node.func.attr == "step" and any("opt" in one for one in words)


def _names(option: Option) -> tuple[str, str]:
    return option.name, option.shown


def _option(name: str, value: Any, node: Any, *, shown: str = "") -> Option:
    known = None if isinstance(value, Unknown) else value
    plain = name.replace("-", "_").lower()
    return Option(name=plain, value=known, line=node.lineno, shown=shown or name)


def _imports(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    yield alias.asname, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
