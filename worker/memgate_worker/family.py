"""The memory of a process and of all that it started."""

from __future__ import annotations

import psutil


def takes_more_than(limit_bytes: int, pid: int) -> bool:
    """Say whether a process, with those that it started, takes more memory than it may.

    A page that several of them share, as workers of a data loader share what was loaded before
    them, counts once. To know that takes a while, so it is looked at only if it matters.
    """
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        if sum(member.memory_info().rss for member in family) <= limit_bytes:
            return False
        return sum(member.memory_full_info().pss for member in family) > limit_bytes
    except psutil.NoSuchProcess:  # one of them ended while we looked
        return False
