"""What a person gives on the command line -> values: a job spec, a file, a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from memgate.errors import InputError, UnsupportedTraceError
from memgate.file_kinds import HEAD_BYTES, FileKind, find_file_kind
from memgate.jobspec import JobSpec, check_supported
from memgate.spec_text import read_job_bytes


def read_spec(path: Path) -> JobSpec:
    """Read a job spec, JSON or YAML, from a file or (``-``) from standard input.

    Raises:
        InputError: if it is missing or wrong, with the field and the rule.
        UnsupportedJobError: if it describes a job that memgate cannot run yet.
    """
    with _naming(path):
        content = sys.stdin.buffer.read() if path == Path("-") else path.read_bytes()
        kind = find_file_kind(content[:HEAD_BYTES])
        if kind is not FileKind.JOB_SPEC:
            command = "estimate" if kind is FileKind.TIMELINE else "analyze"
            raise InputError(f"this is a {kind}: memgate {command} {path} --gpu GPU")
        spec = read_job_bytes(content)
    check_supported(spec)
    return spec


def is_timeline(path: Path) -> bool:
    """Say whether a file, or (``-``) what is on standard input, is a timeline file.

    Raises:
        InputError: if it cannot be read.
    """
    with _naming(path):
        if path == Path("-"):
            assert isinstance(sys.stdin.buffer, BufferedReader)
            return find_file_kind(sys.stdin.buffer.peek()) is FileKind.TIMELINE
        with path.open("rb") as stream:
            return find_file_kind(stream.read(HEAD_BYTES)) is FileKind.TIMELINE


@contextmanager
def open_upload(path: Path) -> Iterator[BinaryIO]:
    """Open a trace, a snapshot or a timeline file ('-': from stdin); errors about it name the file.

    Raises:
        InputError: if it cannot be read, or is none of them.
    """
    with _naming(path):
        if path == Path("-"):
            yield BytesIO(sys.stdin.buffer.read())  # some of it may be in our buffer already
            return
        with path.open("rb") as stream:
            yield stream


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the file's name to errors about it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (InputError, UnsupportedTraceError) as error:
        raise error.about(path) from None


def read_gpu(text: str) -> Any:
    """Read a GPU as given on the command line: a name, or JSON.

    Raises:
        InputError: if it begins like JSON and is not.
    """
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"gpu {text!r} is not JSON: {error}") from None
