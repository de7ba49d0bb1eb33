"""Calls of Linux that keep a process apart, by ctypes. Needs only the standard library."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

NEWNS, NEWUTS, NEWIPC, NEWUSER = 0x00020000, 0x04000000, 0x08000000, 0x10000000
NEWPID, NEWNET, NEWCGROUP, NEWTIME = 0x20000000, 0x40000000, 0x02000000, 0x00000080

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2

#: of the view of the machine: nothing can be written, and no program gets rights by its owner
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
#: of x86-64, as is everything here that has a number
_PIVOT_ROOT, _MOUNT_SETATTR = 155, 442

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_CAPBSET_DROP = 1, 4, 8, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
_CAPABILITY_VERSION_3, _LAST_CAPABILITY = 0x20080522, 40
#: look into directories and read files whoever owns them
DAC_READ_SEARCH = 2

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """Return what a call returned.

    Raises:
        OSError: if it failed.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(namespaces: int) -> None:
    """Leave namespaces for new ones."""
    check(libc.unshare(namespaces), "unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount a file system; with ``MS_BIND``, a place that is there."""
    words = [text.encode() or None for text in (source, target, kind)]
    done = libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None)
    check(done, f"mount {target}")


def limit_mount(target: str, attributes: int, *, recursively: bool) -> None:
    """Make a mount, or all beneath a directory, read-only and the like."""
    request = struct.pack("QQQQ", attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursively else 0
    done = libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, target.encode(), flags, request, len(request))
    check(done, f"make {target} read-only")


def change_root(directory: str) -> None:
    """Make a mount the root directory, and let go of the former one."""
    os.chdir(directory)
    check(libc.syscall(_PIVOT_ROOT, b".", b"."), "pivot_root")
    check(libc.umount2(b".", _MNT_DETACH), "leave the former root")
    os.chdir("/")


def die_with_parent(number: int) -> None:
    """Have this process sent a signal when the one that started it is gone."""
    check(libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0), "PDEATHSIG")


def adopt_orphans() -> None:
    """Become the parent of every process beneath us that loses its own."""
    check(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "SUBREAPER")


def be_dumpable() -> None:
    """Own our files in /proc again, after a change of user."""
    check(libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "DUMPABLE")


def gain_nothing() -> None:
    """No program that is started from now on has more rights than this process."""
    check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def bound_capabilities(kept: Sequence[int] = ()) -> None:
    """Have no program that is started from now on get capabilities, but some."""
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for number in range(_LAST_CAPABILITY + 1):  # one that the kernel lacks, or that we may not
        if number not in kept:
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    libc.prctl(_PR_SET_KEEPCAPS, int(bool(kept)), 0, 0, 0)


def keep_capabilities(kept: Sequence[int] = ()) -> None:
    """Give up all capabilities but some, after ``bound_capabilities``."""
    mask = sum(1 << number for number in kept)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    data = struct.pack("6I", *[mask & 0xFFFFFFFF] * 3, *[mask >> 32] * 3)
    check(libc.capset(header, data), "capset")
    for number in kept:
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number, 0, 0)
