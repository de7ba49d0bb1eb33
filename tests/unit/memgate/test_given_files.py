"""Paths that people give: what is not a file is refused, and not waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from memgate.client.calls import ask_estimate
from memgate.errors import InputError
from memgate.given_files import open_given_file
from memgate.local import estimate


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    ("make", "want_message"),
    [
        (os.mkfifo, "this is a named pipe, not a file; give the path of a file"),
        (Path.mkdir, "this is a directory, not a file"),
        (_socket, "this is a socket, not a file"),
        (lambda path: path.symlink_to("/dev/zero"), "this is a device, not a file"),
        (_loop, "Too many levels of symbolic links"),
        (lambda _: None, "No such file or directory"),
    ],
)
def test_what_is_not_a_file_is_refused(
    tmp_path: Path, make: Callable[[Path], object], want_message: str
) -> None:
    """A pipe would wait for a writer, a device might never end."""
    path = tmp_path / "trace"
    make(path)

    with pytest.raises(InputError) as raised, open_given_file(path):
        pass

    assert raised.value.message.startswith(f"{path}: {want_message}")


@pytest.mark.parametrize(
    "ask",
    [
        lambda path: estimate(path, "t4"),
        lambda path: ask_estimate(path, "t4", engine="auto", allocator=""),
    ],
    ids=["memgate.estimate", "Client.estimate"],
)
def test_every_door_refuses_a_pipe(tmp_path: Path, ask: Callable[[Path], object]) -> None:
    """Before it is opened."""
    path = tmp_path / "pipe"
    os.mkfifo(path)

    with pytest.raises(InputError, match="named pipe, not a file"):
        ask(path)


def test_errors_about_the_content_name_the_file(tmp_path: Path) -> None:
    """And those of the disk."""
    path = tmp_path / "trace"
    path.write_bytes(b"{}")

    with pytest.raises(InputError, match=f"^{path}: broken$"), open_given_file(path):
        raise InputError("broken")
    with pytest.raises(InputError, match=f"^{path}: Input/output error$"), open_given_file(path):
        raise OSError(5, "Input/output error")
