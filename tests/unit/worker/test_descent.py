"""Where a process comes from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memgate_worker.hook.memgate_hook.descent import find_background, find_children

BOTH, NEITHER, OTHERS = "0000000000000006", "0000000000000000", "0000000000001003"
WAITING = "0000000000000004"


def processes(proc: Path, *known: tuple[int, int, str]) -> Path:
    """Have processes, each with its parent and the signals that it ignores."""
    for pid, parent, ignored in known:
        (proc / str(pid)).mkdir()
        text = f"Name:\tsh\nPPid:\t{parent}\nSigIgn:\t{ignored}\nNSsid:\t5\n"
        (proc / str(pid) / "status").write_text(text)
    return proc


@pytest.mark.parametrize(
    ("known", "want"),
    [
        ([(9, 8, NEITHER), (8, 1, NEITHER)], 0),
        ([(9, 8, OTHERS), (8, 1, NEITHER)], 0),
        ([(9, 8, BOTH), (8, 1, NEITHER)], 9),
        ([(9, 8, BOTH), (8, 7, BOTH), (7, 1, NEITHER)], 8),
        ([(9, 8, NEITHER), (8, 7, WAITING), (7, 1, NEITHER)], 8),
        ([(9, 8, BOTH)], 9),
        ([(9, 5, NEITHER), (5, 1, BOTH)], 0),
    ],
    ids=[
        *("none", "other signals", "itself", "a shell above it", "only the shell above it"),
        *("its parent has ended", "the command itself"),
    ],
)
def test_a_command_in_the_background_is_known_by_what_it_ignores(
    tmp_path: Path, known: list[tuple[int, int, str]], want: int
) -> None:
    """POSIX has it ignore two signals, and all that it starts."""
    assert find_background(9, processes(tmp_path, *known)) == want


def _heed_signals() -> None:
    """The tests themselves may run in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def test_a_real_shell_does_what_posix_says() -> None:
    """In the background, and only there."""
    ask = (
        "import sys; sys.path.insert(0, sys.argv[1]); from descent import BACKGROUND as b; print(b)"
    )
    hook = Path(sys.modules[find_background.__module__].__file__ or "").parent
    script = (
        'f() { "$@"; }; f "$0" -c "$1" "$2"; "$0" -c "$1" "$2" & wait; f "$0" -c "$1" "$2" & wait'
    )

    said = subprocess.run(
        ["bash", "-c", script, sys.executable, ask, str(hook)],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
        preexec_fn=_heed_signals,
    ).stdout.split()

    assert said[0] == "0"
    assert int(said[1]) > 0
    assert int(said[2]) > 0


def test_children_are_those_that_are_there() -> None:
    """Which are asked of Linux."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in find_children(os.getpid())
    finally:
        child.communicate()
