"""Scripts that look for a terminal find one on which nobody types."""

from __future__ import annotations

import subprocess

from memgate_worker.recorder.terminal import silent_terminal


def test_a_job_finds_a_terminal_and_no_input() -> None:
    """It has a size; each read is at its end at once, however many there are."""
    with silent_terminal() as terminal:
        ran = subprocess.run(
            ["sh", "-c", "stty size; tty -s && echo is one; read x || read x || echo nothing"],
            stdin=terminal,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=True,
            start_new_session=True,
        )

    assert ran.stdout == "24 80\nis one\nnothing\n"
