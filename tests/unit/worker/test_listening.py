"""What memgate does when it cannot answer a process of a run."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import StandInsMissingError
from memgate_worker.recorder.libraries import Libraries
from memgate_worker.recorder.listening import Listening


def _ask(run_dir: Path) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as asking, asking.makefile("rwb") as line:
        asking.connect(str(run_dir / "socket"))
        line.write(b'{"kind": "torch", "directory": "/torch", "path": []}\n')
        line.flush()
        return dict(json.loads(line.readline() or b"{}"))


def test_a_file_that_cannot_be_read_is_not_taken_for_a_lost_connection(tmp_path: Path) -> None:
    """The process is told, and so is the caller."""

    def find(_: Path, __: list[str]) -> Libraries:
        raise PermissionError(13, "Permission denied", "/root/x")

    with Listening(tmp_path, find, lambda _: None) as listening:
        answer = _ask(tmp_path)

    assert "Permission denied: '/root/x'" in answer["problem"]
    assert isinstance(listening.heard.error, StandInsMissingError)


def test_a_crash_is_kept_for_the_caller(tmp_path: Path) -> None:
    """Whether the command still runs or not."""

    def find(_: Path, __: list[str]) -> Libraries:
        raise ZeroDivisionError

    with Listening(tmp_path, find, lambda _: None) as listening:
        assert _ask(tmp_path) == {}

    with pytest.raises(ZeroDivisionError):
        raise listening.crash or AssertionError
