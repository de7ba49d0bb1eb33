"""Landlock: a process sees and writes the files that it is given, and nothing else.

Standard library only. What a kernel's version of Landlock does not know is left out; from the first
one on it keeps processes apart, too: none inside can look into one outside.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable

from memgate_worker.sandbox import kernel

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_PATH_BENEATH, _VERSION = 1, 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE
_READING = _EXECUTE | _READ_FILE | _READ_DIR
#: of the first version; then moving between directories, truncating, and calls of devices
_ALL = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ADDED = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
_NETWORK = {4: 3}
#: abstract sockets, and signals
_SCOPES = {6: 3}


def find_version() -> int:
    """Return which version of Landlock the kernel has; 0 if it has none."""
    return max(0, int(kernel.libc.syscall(_CREATE, None, 0, _VERSION)))


def restrict(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Keep this process, and what it starts, to some directories and files.

    What is not there is left out.

    Raises:
        OSError: if the kernel has no Landlock.
    """
    version = find_version()

    def known(added: dict[int, int]) -> int:
        return sum(bits for since, bits in added.items() if version >= since)

    handled = _ALL | known(_ADDED)
    attributes = struct.pack("QQQ", handled, known(_NETWORK), known(_SCOPES))
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = kernel.check(kernel.libc.syscall(_CREATE, attributes, size, 0), "landlock")
    try:
        for path in readable:
            _allow(rules, path, _READING)
        for path in writable:
            _allow(rules, path, handled)
        kernel.gain_nothing()
        kernel.check(kernel.libc.syscall(_RESTRICT, rules, 0), "landlock")
    finally:
        os.close(rules)


def _allow(rules: int, path: str, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            access &= _OF_FILES | _TRUNCATE | _IOCTL_DEV
        rule = struct.pack("=Qi", access, place)
        done = kernel.libc.syscall(_ADD, rules, _PATH_BENEATH, rule, 0)
        kernel.check(done, f"landlock: {path}")
    finally:
        os.close(place)
