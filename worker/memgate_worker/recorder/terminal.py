"""A terminal for jobs that look for one: scripts ask it how wide it is, and fail without it.

Nobody types there: whoever reads finds the end at once, as in ``/dev/null``.
"""

from __future__ import annotations

import os
import termios
from collections.abc import Iterator
from contextlib import contextmanager

#: what terminals have had since there were any
_LINES, _COLUMNS = 24, 80


@contextmanager
def silent_terminal() -> Iterator[int]:
    """Give a file descriptor to be a job's standard input; it is closed at the end."""
    ours, jobs = os.openpty()
    try:
        termios.tcsetwinsize(jobs, (_LINES, _COLUMNS))
        mode = termios.tcgetattr(jobs)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        # Reads that wait for no byte and no time return nothing, which is the end of a file.
        mode[6][termios.VMIN] = mode[6][termios.VTIME] = 0
        termios.tcsetattr(jobs, termios.TCSANOW, mode)
        yield jobs
    finally:
        os.close(jobs)
        os.close(ours)
