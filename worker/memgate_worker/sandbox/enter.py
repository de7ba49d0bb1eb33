"""``python -I -S enter.py LEVEL [--memory-at DIR BYTES] -- COMMAND...``: runs it in a sandbox.

A program of its own with nothing but the standard library. It enters namespaces, becomes the
first process of them, and waits: when the command ends, or we are ended, the kernel ends
everything that the command has started, whoever its parents are.

- ``root`` and ``namespaces``: own mounts, processes, network (a loopback interface, nothing else),
  System V objects and host name. The first needs the right to do so, the second makes a user
  namespace in which the user keeps their own number and gets no rights.
- ``landlock``: no namespace; a filter of system calls leaves no sockets but local ones. Processes
  of the same user can be seen and ended.

Files are not protected here: ``memgate_worker.guard`` does that, inside of the sandbox.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import NoReturn

#: what we end with if there is no sandbox
FAILED_STATUS = 88

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER = 0x00020000, 0x04000000, 0x08000000, 0x10000000
_NEWPID, _NEWNET = 0x20000000, 0x40000000
_APART = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

#: socket, socketpair, io_uring_setup: of x86-64
_SOCKET_CALLS, _URING = (41, 53), 425
_AUDIT_ARCH_X86_64, _ALLOW, _ERRNO = 0xC000003E, 0x7FFF0000, 0x00050000

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [text.encode() for text in (source, target, kind)]
    _check(_libc.mount(*words, ctypes.c_ulong(flags), data.encode()), f"mount {target}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _leave_the_machine(level: str) -> None:
    """Enter namespaces; processes that are started from now on are in them."""
    uid, gid = os.getuid(), os.getgid()
    if level == "root":
        _check(_libc.unshare(_APART), "unshare")
        return
    _check(_libc.unshare(_APART | _NEWUSER), "unshare")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")


def _furnish(memory_at: str, num_bytes: int) -> None:
    """Set up the namespaces: mounts of our own, our processes in /proc, a loopback interface."""
    _check(_libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "mount /")
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    if memory_at:
        options = f"mode=1777,size={num_bytes}"
        _mount("tmpfs", memory_at, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(one, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(one, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _filter_sockets() -> None:
    """Refuse sockets that are not local, and what opens them without a call of its own."""

    def statement(code: int, yes: int, no: int, value: int) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    load, equal, give = 0x20, 0x15, 0x06
    program = [
        statement(load, 0, 0, 4),  # the architecture
        statement(equal, 1, 0, _AUDIT_ARCH_X86_64),
        statement(give, 0, 0, _ERRNO | 38),
        statement(load, 0, 0, 0),  # the call
        statement(equal, 0, 1, _URING),
        statement(give, 0, 0, _ERRNO | 38),
        statement(equal, 1, 0, _SOCKET_CALLS[0]),
        statement(equal, 0, 3, _SOCKET_CALLS[1]),
        statement(load, 0, 0, 16),  # its family
        statement(equal, 1, 0, socket.AF_UNIX),
        statement(give, 0, 0, _ERRNO | 97),
        statement(give, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _check(_libc.prctl(_PR_SET_SECCOMP, 2, header, 0, 0), "seccomp")


def _run_first(command: Sequence[str], memory_at: str, num_bytes: int) -> NoReturn:
    """Be the first process of the namespaces; everything in them ends with us."""
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _furnish(memory_at, num_bytes)
    except OSError as error:
        _fail(error)
    child = os.fork()
    if child == 0:
        _execute(command)
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(_as_exit_status(status))


def _execute(command: Sequence[str]) -> NoReturn:
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        _fail(error)


def _as_exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _fail(error: OSError) -> NoReturn:
    print(f"memgate sandbox: {error.strerror or error}", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(FAILED_STATUS)


def main(arguments: Sequence[str]) -> NoReturn:
    """Run a command; its exit status is ours."""
    level, *options = arguments[: arguments.index("--")]
    command = arguments[arguments.index("--") + 1 :]
    memory_at, num_bytes = (options[1], int(options[2])) if options else ("", 0)
    try:
        if level == "landlock":
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            _filter_sockets()
            _execute(command)
        _leave_the_machine(level)
    except OSError as error:
        _fail(error)
    first = os.fork()
    if first == 0:
        _run_first(command, memory_at, num_bytes)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os.kill(first, signal.SIGKILL))
    _, status = os.waitpid(first, 0)
    os._exit(_as_exit_status(status))


if __name__ == "__main__":
    main(sys.argv[1:])
