"""Filters of system calls (seccomp) for what runs code of a caller's. Standard library only.

Refused in every sandbox: looking into other processes, mounts and namespaces, what changes the
kernel or the clock, and calls by which others can be made without their numbers. Where there is no
network namespace, sockets are refused as well.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Iterable

from memgate_worker.sandbox import kernel

#: of x86-64
_PTRACE = (101, 310, 311, 312, 438)  # with process_vm_readv, process_vm_writev, kcmp, pidfd_getfd
_MOUNTS = (155, 161, 165, 166, 272, 308, 428, 429, 430, 431, 432, 433, 442)
_KERNEL = (
    *(153, 163, 167, 168, 169, 172, 173, 175, 176, 179, 246, 313, 320),  # modules, kexec, ports
    *(159, 164, 170, 171, 227, 305),  # clocks, names of the host
    *(154, 248, 249, 250, 298, 303, 304, 321, 323),  # keys, bpf, perf, handles, userfaultfd
)
#: programs do without these where a kernel lacks them
_ABSENT = (425, 426, 427, 435)  # io_uring, clone3: what they would do cannot be looked at
_CLONE = 56
_SOCKET, _SOCKETPAIR = 41, 53
_X32 = 0x40000000

_NAMESPACES = (
    *(kernel.NEWNS, kernel.NEWUTS, kernel.NEWIPC, kernel.NEWUSER),
    *(kernel.NEWPID, kernel.NEWNET, kernel.NEWCGROUP),
)

_AUDIT_ARCH_X86_64, _ALLOW, _ERRNO = 0xC000003E, 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _GIVE = 0x20, 0x15, 0x35, 0x45, 0x06
#: where ``struct seccomp_data`` has the call, the architecture, and the first argument
_NR, _ARCH, _FIRST = 0, 4, 16
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

#: what a refused socket fails with
NO_SOCKETS = errno.EAFNOSUPPORT


def _statement(code: int, yes: int, no: int, value: int) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


def _refuse(calls: Iterable[int], error: int) -> list[bytes]:
    """Refuse some calls; the call's number is loaded, and still is afterwards."""
    return [
        line
        for call in calls
        for line in (_statement(_EQUAL, 0, 1, call), _statement(_GIVE, 0, 0, _ERRNO | error))
    ]


def _begin() -> list[bytes]:
    return [
        _statement(_LOAD, 0, 0, _ARCH),
        _statement(_EQUAL, 1, 0, _AUDIT_ARCH_X86_64),
        _statement(_GIVE, 0, 0, _ERRNO | errno.ENOSYS),
        _statement(_LOAD, 0, 0, _NR),
        _statement(_AT_LEAST, 0, 1, _X32),
        _statement(_GIVE, 0, 0, _ERRNO | errno.ENOSYS),
    ]


def _without_namespaces() -> list[bytes]:
    """Refuse processes in namespaces of their own."""
    return [
        _statement(_EQUAL, 0, 4, _CLONE),
        _statement(_LOAD, 0, 0, _FIRST),
        _statement(_ANY_BIT, 0, 1, sum(_NAMESPACES)),
        _statement(_GIVE, 0, 0, _ERRNO | errno.EPERM),
        _statement(_LOAD, 0, 0, _NR),
    ]


def _sockets(*, named: bool) -> list[bytes]:
    """Refuse sockets that are not local; unless ``named``, all but unnamed pairs."""
    refused = _statement(_GIVE, 0, 0, _ERRNO | NO_SOCKETS)
    if not named:
        return [
            _statement(_EQUAL, 0, 1, _SOCKET),
            refused,
            _statement(_EQUAL, 0, 3, _SOCKETPAIR),
            _statement(_LOAD, 0, 0, _FIRST),
            _statement(_EQUAL, 1, 0, socket.AF_UNIX),
            refused,
            _statement(_LOAD, 0, 0, _NR),
        ]
    return [
        _statement(_EQUAL, 1, 0, _SOCKET),
        _statement(_EQUAL, 0, 4, _SOCKETPAIR),
        _statement(_LOAD, 0, 0, _FIRST),
        _statement(_EQUAL, 1, 0, socket.AF_UNIX),
        refused,
        _statement(_LOAD, 0, 0, _NR),
    ]


def _enter(program: list[bytes]) -> None:
    program = [*_begin(), *program, _statement(_GIVE, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    kernel.gain_nothing()
    kernel.check(kernel.libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0), "seccomp")


def leave_local_sockets() -> None:
    """Refuse sockets that are not local, and what opens them without a call of its own."""
    _enter([*_refuse(_ABSENT[:3], errno.ENOSYS), *_sockets(named=True)])


def refuse_calls(*, has_network: bool) -> None:
    """Refuse what a job has no use for; without a network of its own, sockets, too."""
    program = [
        *_refuse((*_PTRACE, *_MOUNTS, *_KERNEL), errno.EPERM),
        *_refuse(_ABSENT, errno.ENOSYS),
        *_without_namespaces(),
    ]
    _enter(program if has_network else [*program, *_sockets(named=False)])
