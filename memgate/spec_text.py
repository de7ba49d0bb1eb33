"""Text that a person wrote -> a job spec: JSON or YAML, from a file, a page or an annotation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import yaml

from memgate.errors import InputError
from memgate.file_kinds import MAX_SPEC_LENGTH
from memgate.jobspec import JobSpec, parse_job_spec
from memgate.worlds import JobGpus, fill_world

#: YAML takes a second for 50,000 characters, which blocks everybody else; JSON a millisecond
_MAX_YAML = 1 << 14


class PlainLoader(yaml.SafeLoader):
    """YAML as people write it, without aliases: a few lines of nested ones can fill the memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Read a part of the document."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Make a dictionary; a field that is there twice would be read once, in silence."""
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                problem = f"the field {name!r} is there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


# YAML 1.1 takes 1e-4 for text; JSON, and YAML 1.2, take it for a number.
PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


class SpecTextError(InputError):
    """A text is neither JSON nor YAML; ``line`` is where, counted from 1, if that is known."""

    def __init__(self, problem: str, line: int | None = None, column: int | None = None) -> None:
        place = "" if line is None else f" in line {line}, column {column}"
        super().__init__(f"{problem}{place}")
        self.problem = problem
        self.line = line


def read_job_text(text: str, world: JobGpus | None = None) -> JobSpec:
    """Check a spec; ``world`` are the GPUs of where it will run, if they are known.

    Raises:
        InputError: if it is not one, with the place, or the field and the rule.
    """
    document = read_text(text)
    return parse_job_spec(document if world is None else fill_world(document, world))


def read_job_bytes(
    data: bytes, complete: Callable[[object], object] = lambda document: document
) -> JobSpec:
    """Check a spec that is in a file, UTF-8; ``complete`` reads the files that it names.

    Raises:
        InputError: if it is not one, with the place, or the field and the rule.
    """
    return parse_job_spec(complete(read_bytes(data)))


def read_bytes(data: bytes, *, what: str = "a job spec") -> object:
    """Read the content of a file, UTF-8, as ``read_text`` does.

    Raises:
        SpecTextError: if it is neither JSON nor YAML, or longer than any spec.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SpecTextError(
            f"neither JSON nor YAML: not UTF-8, from byte {error.start} on"
        ) from None
    return read_text(text, what=what)


def read_text(text: str, *, what: str = "a job spec") -> object:
    """Read JSON, or YAML as far as JSON can express it; ``what`` it is goes into errors.

    Raises:
        SpecTextError: if it is neither, or longer than any spec.
    """
    if len(text) > MAX_SPEC_LENGTH:
        why = f"{what} may have {MAX_SPEC_LENGTH} characters, and this has {len(text)}"
        raise SpecTextError(why)
    try:
        return msgspec.json.decode(text)  # much faster than YAML, of which it is a subset
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    if len(text) > _MAX_YAML:
        raise SpecTextError(
            f"this is not JSON, and as YAML {what} may have {_MAX_YAML} characters; it has"
            f" {len(text)}"
        )
    try:
        document = yaml.load(text, PlainLoader)
        json.dumps(document, allow_nan=False)  # it goes through a queue as JSON
    except yaml.MarkedYAMLError as error:
        problem, mark = f"neither JSON nor YAML: {error.problem}", error.problem_mark
        place = () if mark is None else (mark.line + 1, mark.column + 1)
        raise SpecTextError(problem, *place) from None
    except yaml.YAMLError as error:
        raise SpecTextError(f"neither JSON nor YAML: {error}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecTextError(f"{what} holds what JSON can hold: {error}") from None
    return document
