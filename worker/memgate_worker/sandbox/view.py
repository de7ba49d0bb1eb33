"""What of the machine is seen in a sandbox: a root directory of its own, made of mounts.

Standard library only. Everything in it can be read, and nothing written but in memory, and in the
few places that are named. Paths are those of the machine, so that programs find their libraries.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from memgate_worker.sandbox import kernel

#: programs and their libraries, as far as they are there
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_OF_ETC = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime"),
    *("/etc/alternatives", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/protocols"),
)
#: how many processors there are, and how they are connected
_OF_SYS = ("/sys/devices/system",)
SYSTEM = (*_SYSTEM, *_OF_ETC, *_OF_SYS)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_MADE = {
    "/etc/passwd": "root:x:0:0::/tmp/home:/bin/sh\njob:x:1000:1000::/tmp/home:/bin/sh\n",
    "/etc/group": "root:x:0:\njob:x:1000:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/hostname": "localhost\n",
}
_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/var/tmp": "/tmp",
}
#: any directory that is there: it is covered only as long as the new root is made
_MADE_AT = "/tmp"

#: held in memory, and each job has its own
SCRATCH = ("/tmp", "/dev/shm")
PRIVATE = kernel.MS_NOSUID | kernel.MS_NODEV


def build_root(readable: Iterable[str], writable: Iterable[str], scratch_bytes: int) -> None:
    """Leave the machine's root directory for one with these places, in a mount namespace.

    What is written elsewhere is in memory, and may take ``scratch_bytes``.

    Raises:
        OSError: if the kernel refuses it, or one of the places is not there.
    """
    writable = tuple(writable)
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    there = (path for path in SYSTEM if os.path.lexists(path))
    wanted = [*_without_nested([*there, *_both_names(readable)]), *writable]
    # opened before anything is covered
    sources = {path: os.open(path, os.O_PATH) for path in (*wanted, *DEVICES, "/proc")}
    links = {path: os.readlink(path) for path in wanted if os.path.islink(path)}
    kernel.mount("tmpfs", _MADE_AT, "tmpfs", PRIVATE, "mode=755,size=16m")
    for path in SCRATCH:
        os.makedirs(_MADE_AT + path)
        options = f"mode=1777,size={scratch_bytes}"
        kernel.mount("tmpfs", _MADE_AT + path, "tmpfs", PRIVATE, options)
    for path, source in sources.items():
        if path in links:
            _link(links[path], path)
        else:
            bind(source, _MADE_AT + path)
        if path in wanted and path not in (*writable, *links):
            attributes = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV
            kernel.limit_mount(_MADE_AT + path, attributes, recursively=True)
    for source in sources.values():
        os.close(source)
    _furnish()
    kernel.change_root(_MADE_AT)
    kernel.limit_mount("/", kernel.ATTR_RDONLY, recursively=False)


def _furnish() -> None:
    for path in ("/run", "/tmp/home"):
        os.makedirs(_MADE_AT + path, exist_ok=True)
    for path, text in _MADE.items():
        with open(_MADE_AT + path, "w") as file:
            file.write(text)
    for path, target in _LINKS.items():
        _link(target, path)


def _both_names(paths: Iterable[str]) -> Iterator[str]:
    """Yield each path as it is named, and as it is without links on the way."""
    for path in paths:
        yield path
        yield os.path.realpath(path)


def _without_nested(paths: Iterable[str]) -> list[str]:
    """Leave out what comes with a directory above it, and what is there twice."""
    kept: list[str] = []
    for path in sorted(set(map(os.path.normpath, paths)), key=len):
        if path == "/":
            raise OSError("all of the machine would be seen: a program's prefix is /")
        above = [one for one in kept if path.startswith(f"{one}/") and not os.path.islink(one)]
        if not above:
            kept.append(path)
    return kept


def bind(source: int, target: str) -> None:
    """Show what is open in another place, too, which is made."""
    from_here = f"/proc/self/fd/{source}"
    if os.path.isdir(from_here):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    kernel.mount(from_here, target, "", kernel.MS_BIND | kernel.MS_REC)


def _link(target: str, path: str) -> None:
    os.makedirs(os.path.dirname(_MADE_AT + path), exist_ok=True)
    os.symlink(target, _MADE_AT + path)
