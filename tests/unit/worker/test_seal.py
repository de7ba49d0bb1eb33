"""No file and no network while a model is built."""

from __future__ import annotations

import importlib
import os
import socket
from pathlib import Path

import pytest

from memgate_worker.jobs.seal import SealedError, sealed


def test_a_file_cannot_be_read(tmp_path: Path) -> None:
    """Whoever's it is; the error names it."""
    secret = tmp_path / "secret"
    secret.write_text("hunter2")

    with pytest.raises(SealedError, match="secret"), sealed():
        secret.read_text()

    assert secret.read_text() == "hunter2"


def test_nothing_is_written_or_listed(tmp_path: Path) -> None:
    """A cache of downloads is not even begun."""
    for touch in (
        lambda: os.mkdir(tmp_path / "cache"),
        lambda: os.listdir(tmp_path),
        lambda: (tmp_path / "new").write_text("x"),
    ):
        with pytest.raises(SealedError), sealed():
            touch()

    assert not list(tmp_path.iterdir())


def test_no_socket_is_opened() -> None:
    """Neither a connection nor a lookup of a name."""
    with pytest.raises(SealedError, match="the network"), sealed():
        socket.create_connection(("127.0.0.1", 9))
    with pytest.raises(SealedError, match="the network"), sealed():
        socket.getaddrinfo("localhost", 80)


def test_an_error_that_is_hidden_is_found_again(tmp_path: Path) -> None:
    """Libraries catch what they do not know, and say something else."""
    with pytest.raises(SealedError, match="config"), sealed():
        _load(tmp_path / "config")


def _load(path: Path) -> str:
    try:
        return path.read_text()
    except Exception:
        raise ValueError("there is no such model") from None


def test_what_libraries_consist_of_stays_open() -> None:
    """Modules are imported when they are first needed."""
    with sealed():
        importlib.reload(importlib.import_module("colorsys"))
        Path(importlib.import_module("json").__file__ or "").read_text()


def test_other_errors_pass_through() -> None:
    """They are the job's, and said as they are."""
    with pytest.raises(KeyError), sealed():
        raise KeyError("n_layer")
