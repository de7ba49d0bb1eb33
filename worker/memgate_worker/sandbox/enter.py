"""``python -I -S enter.py LEVEL [OPTIONS] -- COMMAND...``: runs it in a sandbox.

A program of its own with nothing but the standard library. There are two ways.

For a command of a user's, on their own machine (``--memory-at DIR BYTES``, or nothing): it enters
namespaces, becomes the first process of them, and waits. When the command ends, or we are ended,
the kernel ends everything that the command has started, whoever its parents are. Files are not
protected here: ``memgate_worker.guard`` does that, inside of the sandbox.

For a process that is kept for many jobs (``--host PLAN``, see ``cell.py``): it sees some libraries
and nothing else, has no network but itself, and becomes the command. What keeps its jobs apart from
it, and from each other, is in ``confine.py``.

- ``root`` and ``namespaces``: own mounts, processes, network (a loopback interface, nothing else),
  System V objects and host name. The first needs the right to do so, the second makes a user
  namespace in which the user keeps their own number and gets no rights.
- ``landlock``: no namespace; a filter of system calls leaves no sockets but local ones. Processes
  of the same user can be seen and ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":  # by path, and the interpreter knows no packages
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from memgate_worker.sandbox import filters, kernel, view

#: what we end with if there is no sandbox
FAILED_STATUS = 88

_APART = kernel.NEWNS | kernel.NEWUTS | kernel.NEWIPC | kernel.NEWNET
_PRIVATE = view.PRIVATE | kernel.MS_NOEXEC

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _leave_the_machine(level: str) -> None:
    """Enter namespaces; processes that are started from now on are in them."""
    uid, gid = os.getuid(), os.getgid()
    if level == "root":
        kernel.unshare(_APART | kernel.NEWPID)
        return
    kernel.unshare(_APART | kernel.NEWPID | kernel.NEWUSER)
    _map_user(uid, uid, gid, gid)


def _map_user(uid: int, outer_uid: int, gid: int, outer_gid: int) -> None:
    """Have one user and one group in a new user namespace."""
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {outer_uid} 1")
    _write("/proc/self/gid_map", f"{gid} {outer_gid} 1")


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(one, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(one, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _furnish(memory_at: str, num_bytes: int) -> None:
    """Set up the namespaces: mounts of our own, our processes in /proc, a loopback interface."""
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc", _PRIVATE)
    if memory_at:
        options = f"mode=1777,size={num_bytes}"
        kernel.mount("tmpfs", memory_at, "tmpfs", view.PRIVATE, options)
    _raise_loopback()


def _run_first(command: Sequence[str], memory_at: str, num_bytes: int) -> NoReturn:
    """Be the first process of the namespaces; everything in them ends with us."""
    try:
        kernel.die_with_parent(signal.SIGKILL)
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


def _be_a_host(level: str, plan: dict[str, Any]) -> None:
    """See the places of the plan and nothing else, with rights in our own namespaces alone.

    Without rights outside, we see what our user may see. With them, we see what is planned wherever
    it is, and are from then on a user that nobody else is.
    """
    seen = (plan["readable"], plan["writable"], plan["scratch_bytes"])
    if level == "root":
        first = plan["first_uid"]
        kernel.unshare(kernel.NEWNS)
        view.build_root(*seen)
        _with_map_from_outside(first, plan["num_uids"])
        os.setgroups([])
    else:
        uid, gid = os.getuid(), os.getgid()
        kernel.unshare(_APART | kernel.NEWUSER)
        _map_user(0, uid, 0, gid)
        view.build_root(*seen)
    _raise_loopback()
    _check_readable(plan["readable"])


def _with_map_from_outside(first_uid: int, num_uids: int) -> None:
    """Enter a user namespace with a range of users: only who stays outside may write its map."""
    reading, writing = os.pipe()
    us = os.getpid()
    helper = os.fork()
    if helper == 0:
        os.close(writing)
        os.read(reading, 1)
        try:
            for name in ("uid_map", "gid_map"):
                _write(f"/proc/{us}/{name}", f"0 {first_uid} {num_uids}")
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    os.close(reading)
    kernel.unshare(_APART | kernel.NEWUSER)
    os.close(writing)
    _, status = os.waitpid(helper, 0)
    if number := os.waitstatus_to_exitcode(status):
        raise OSError(number, f"map users: {os.strerror(number)}")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _check_readable(paths: Sequence[str]) -> None:
    for path in paths:
        if not os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)):
            raise PermissionError(13, f"{path} cannot be read by other users: chmod -R a+rX it")


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


def _run_here(level: str, options: Sequence[str], command: Sequence[str]) -> None:
    """Become the command, or return where it needs a process to wait for it."""
    if options[:1] == ["--host"]:
        _be_a_host(level, json.loads(options[1]))
        _execute(command)
    if level == "landlock":
        kernel.die_with_parent(signal.SIGKILL)
        filters.leave_local_sockets()
        _execute(command)
    _leave_the_machine(level)


def main(arguments: Sequence[str]) -> NoReturn:
    """Run a command; its exit status is ours."""
    level, *options = arguments[: arguments.index("--")]
    command = arguments[arguments.index("--") + 1 :]
    try:
        _run_here(level, options, command)
    except OSError as error:
        _fail(error)
    memory_at, num_bytes = (options[1], int(options[2])) if options else ("", 0)
    first = os.fork()
    if first == 0:
        _run_first(command, memory_at, num_bytes)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os.kill(first, signal.SIGKILL))
    _, status = os.waitpid(first, 0)
    os._exit(_as_exit_status(status))


if __name__ == "__main__":
    main(sys.argv[1:])
