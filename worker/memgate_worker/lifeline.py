"""Ties a process to the one that started it. Needs only the standard library: the service's image
has no more.
"""

from __future__ import annotations

import ctypes
import signal

#: from Linux's prctl
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have this process killed as soon as the one that started it is gone, however it ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
