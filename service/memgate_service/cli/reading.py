"""What a person gives on the command line -> values: a job spec, a file, a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import typer

from memgate.errors import InputError
from memgate.file_kinds import HEAD_BYTES, FileKind, find_file_kind
from memgate.given_files import naming, open_given_file, read_lengths
from memgate.gpus import describe_machine
from memgate.jobspec import JobSpec, check_supported
from memgate.spec_text import read_job_bytes

_STDIN = Path("-")
_PIPED = "give the path of a file, or pipe it: COMMAND | memgate analyze - --gpu GPU"


def read_spec(path: Path) -> JobSpec:
    """Read a job spec, JSON or YAML, from a file or (``-``) from standard input.

    Raises:
        InputError: if it is missing or wrong, with the field and the rule.
        UnsupportedJobError: if it describes a job that memgate cannot run yet.
    """
    with naming(path):
        # a spec may come out of a pipe, and what is longer is not a spec
        with nullcontext(sys.stdin.buffer) if path == _STDIN else path.open("rb") as stream:
            content = stream.read(HEAD_BYTES)
        kind = find_file_kind(content)
        if kind is not FileKind.JOB_SPEC:
            command = "estimate" if kind is FileKind.TIMELINE else "analyze"
            raise InputError(f"this is a {kind}: memgate {command} {path} --gpu GPU")
        spec = read_job_bytes(content, lambda document: read_lengths(document, path.parent))
    check_supported(spec)
    return spec


def is_timeline(path: Path) -> bool:
    """Say whether a file, or (``-``) what is on standard input, is a timeline file.

    Raises:
        InputError: if it cannot be read.
    """
    with naming(path):
        if path == _STDIN:
            assert isinstance(sys.stdin.buffer, BufferedReader)
            return find_file_kind(sys.stdin.buffer.peek()) is FileKind.TIMELINE
        with path.open("rb") as stream:  # a job spec may come out of a pipe
            is_file = stream.seekable()
            return is_file and find_file_kind(stream.read(HEAD_BYTES)) is FileKind.TIMELINE


@contextmanager
def open_upload(path: Path) -> Iterator[BinaryIO]:
    """Open a trace, a snapshot or a timeline file ('-': from stdin); errors about it name the file.

    Raises:
        InputError: if it cannot be read, or is none of them.
    """
    if path != _STDIN:
        with open_given_file(path, instead=_PIPED) as stream:
            yield stream
        return
    with naming(path):
        if sys.stdin.isatty():
            raise InputError("standard input is a terminal: memgate analyze - --gpu GPU < FILE")
        yield BytesIO(sys.stdin.buffer.read())  # some of it may be in our buffer already


def read_gpu(text: str) -> Any:
    """Read a GPU as given on the command line: a name, or JSON.

    Raises:
        InputError: if it begins like JSON and is not.
    """
    if not text.lstrip().startswith("{"):
        if note := describe_machine(text):
            typer.echo(note, err=True)
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"gpu {text!r} is not JSON: {error}") from None
