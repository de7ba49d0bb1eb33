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
#: every bash does
QUIT = "0000000000000004"


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
        ([(9, 8, NEITHER), (8, 7, BOTH), (7, 1, NEITHER)], 8),
        ([(9, 8, NEITHER), (8, 7, QUIT), (7, 1, NEITHER)], 0),
        ([(9, 8, BOTH)], 9),
        ([(9, 5, NEITHER), (5, 1, BOTH)], 0),
    ],
    ids=[
        *("none", "other signals", "itself", "a shell above it", "only the shell above it"),
        *("a bash above it", "its parent has ended", "the command itself"),
    ],
)
def test_a_command_in_the_background_is_known_by_what_it_ignores(
    tmp_path: Path, known: list[tuple[int, int, str]], want: int
) -> None:
    """POSIX has it ignore two signals."""
    assert find_background(9, processes(tmp_path, *known)) == want


def _heed_signals() -> None:
    """The tests themselves may run in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize(
    ("script", "want"),
    [
        ("ask", False),
        ('"$0" -c "$1" "$2"', False),
        ("(ask)", False),
        ("ask | cat", False),
        ('"$0" -c "$1" "$2" & wait', True),
        ("ask & wait", True),
        ("(ask; true) & wait", True),
    ],
)
def test_real_shells_are_known_by_what_they_do(shell: str, script: str, want: bool) -> None:
    """In the background, and only there; also with a shell beneath the one that leads."""
    text = "import sys; sys.path.insert(0, sys.argv[1]); import descent; print(descent.BACKGROUND)"
    hook = Path(sys.modules[find_background.__module__].__file__ or "").parent
    functions = 'ask() { "$program" -c "$text" "$hook"; true; }; program=$0; text=$1; hook=$2; '
    below = [shell, "-c", functions + script + "; true", sys.executable, text, str(hook)]

    said = subprocess.run(
        ["bash", "-c", '"$@"; true', "bash", *below],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        start_new_session=True,
        preexec_fn=_heed_signals,
    ).stdout

    assert (int(said) > 0) is want


def test_children_are_those_that_are_there() -> None:
    """Which are asked of Linux."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in find_children(os.getpid())
    finally:
        child.communicate()
