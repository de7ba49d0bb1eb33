"""What a job may not do, at each level of the sandbox; after each, the next job runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from memgate_worker.sandbox.level import Level
from memgate_worker.sandbox.policy import SandboxPolicy, choose
from tests.integration.captive import MAX_PROCESSES, Captive
from tests.running import wait_until


def _works(level: Level) -> bool:
    try:
        return choose(SandboxPolicy(use=level)).level is level
    except Exception:
        return False


_LEVELS = [
    pytest.param(
        level, marks=pytest.mark.skipif(not _works(level), reason=f"{level} does not work here")
    )
    for level in (Level.ROOT, Level.NAMESPACES, Level.LANDLOCK)
]
_NAMESPACES = _LEVELS[:2]


@pytest.fixture
def captive(level: Level) -> Iterator[Captive]:
    """Keep a process for jobs; whatever one does, the next one runs."""
    with Captive(level) as captive:
        yield captive
        after = captive.run("print('well')")
        assert (after.code, after.printed) == (0, "well\n")


every_level = pytest.mark.parametrize("level", _LEVELS)
with_namespaces = pytest.mark.parametrize("level", _NAMESPACES)


@every_level
def test_no_view_of_the_environment_of_others(captive: Captive) -> None:
    """Neither of our process nor of the one above it: not what they know, hold or have open."""
    found = captive.ask(
        f"""
import json, os
seen = []
for pid in {[os.getpid(), captive.process.pid]}:
    for name in ("environ", "mem", "maps", "auxv", "fd/0", "cwd", "root", "exe"):
        path = f"/proc/{{pid}}/{{name}}"
        for look in (os.readlink, lambda one: open(one, "rb").read(1)):
            try:
                seen.append((path, str(look(path))))
            except OSError:
                pass
print(json.dumps(seen))
"""
    )
    assert found == []


@every_level
def test_no_socket_of_the_machine_is_reached(captive: Captive, tmp_path: Path) -> None:
    """Not the store's, by its path, its abstract name or its port; nor an address elsewhere."""
    path, name = tmp_path / "store", f"\0memgate-{os.getpid()}"
    with (
        socket.socket(socket.AF_UNIX) as by_path,
        socket.socket(socket.AF_UNIX) as by_name,
        socket.create_server(("127.0.0.1", 0)) as by_port,
    ):
        by_path.bind(str(path))
        path.chmod(0o777)
        by_name.bind(name)
        for one in (by_path, by_name):
            one.listen()
        found = captive.ask(
            f"""
import json, socket
reached = []
for family, address in (
    (socket.AF_UNIX, {str(path)!r}),
    (socket.AF_UNIX, {name!r}),
    (socket.AF_INET, {by_port.getsockname()!r}),
    (socket.AF_INET, ("192.0.2.1", 9)),
):
    try:
        with socket.socket(family) as one:
            one.settimeout(2)
            one.connect(address)
            reached.append(str(address))
    except OSError:
        pass
print(json.dumps(reached))
"""
        )
    assert found == []


@with_namespaces
def test_a_job_has_a_loopback_interface_of_its_own(captive: Captive) -> None:
    """Ranks of a job find each other."""
    found = captive.ask(
        "import json, socket; one = socket.create_server(('127.0.0.1', 0));"
        " socket.create_connection(one.getsockname());"
        " print(json.dumps([name for _, name in socket.if_nameindex()]))"
    )
    assert "lo" in found
    assert not [name for name in found if name.startswith(("eth", "en", "wl", "docker"))]


@pytest.mark.parametrize("level", _LEVELS[2:])
def test_without_namespaces_there_are_unnamed_pairs_only(captive: Captive) -> None:
    """Programs that talk to their own children go on."""
    found = captive.ask(
        """
import json, socket
socket.socketpair()
errors = []
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
    try:
        socket.socket(family)
    except OSError as error:
        errors.append(error.errno)
print(json.dumps(errors))
"""
    )
    assert found == [97] * 4


@every_level
def test_a_fork_bomb_ends(captive: Captive) -> None:
    """GIVEN one WHEN its time is over THEN none of its processes is left."""
    mark = f"memgate-bomb-{os.getpid()}"
    ended = captive.run(
        f"""
import ctypes, os, time
os.nice(19)
ctypes.CDLL(None).prctl(15, {mark[:15].encode()!r}, 0, 0, 0)
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        time.sleep(0.5)
""",
        seconds=2.0,
    )
    assert (ended.code, ended.error) == (None, "TIME_LIMIT_EXCEEDED")
    wait_until(lambda: not _are_there(mark[:15]), "all are gone", 20)


def _are_there(name: str) -> bool:
    return any(
        one.info["name"] == name and one.info["status"] != psutil.STATUS_ZOMBIE
        for one in psutil.process_iter(["name", "status"])
    )


@every_level
def test_the_number_of_processes_is_bounded(captive: Captive) -> None:
    """A job gets an error, and the machine keeps its processes."""
    found = captive.ask(
        """
import json, os, signal
children = []
try:
    while len(children) < 300:
        if (child := os.fork()) == 0:
            signal.pause()
        children.append(child)
except OSError:
    pass
for child in children:
    os.kill(child, signal.SIGKILL)
print(json.dumps(len(children)))
"""
    )
    assert 10 < found <= MAX_PROCESSES


@with_namespaces
def test_the_disk_cannot_be_filled(captive: Captive) -> None:
    """What a job writes is in memory and has a bound; then it is gone."""
    found = captive.ask(
        """
import errno, json, os
written = 0
try:
    for n in range(40):
        with open(f"/tmp/{n}", "wb", buffering=0) as file:
            for _ in range(16):
                written += os.posix_fallocate(file.fileno(), _ << 24, 1 << 24) or 1 << 24
except OSError as error:
    print(json.dumps([written, errno.errorcode[error.errno]]))
""",
    )
    assert found[1] == "ENOSPC"
    assert found[0] <= 2 << 30
    assert captive.ask("import json, os; print(json.dumps(os.listdir('/tmp')))") == ["home"]


@pytest.mark.parametrize("level", _LEVELS[2:])
def test_without_namespaces_what_is_written_is_measured(captive: Captive) -> None:
    """One file has a bound of its own; many are noticed."""
    ended = captive.run(
        """
import os, tempfile, time
n = 0
while True:
    with open(os.path.join(tempfile.gettempdir(), str(n)), "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 28)
    n = min(n + 1, 11)
    time.sleep(0.01)
"""
    )
    assert ended.error == "LIMIT_EXCEEDED", ended


@every_level
def test_memory_is_bounded(captive: Captive) -> None:
    """GIVEN a job that eats 100 GB WHEN it is at its limit THEN it is ended, and told."""
    ended = captive.run(
        """
eaten = []
for _ in range(400):
    eaten.append(bytearray(256 << 20))
    eaten[-1][::4096] = bytes(len(eaten[-1]) // 4096 )
    for i in range(0, len(eaten[-1]), 4096):
        eaten[-1][i] = 1
""",
        memory_bytes=1 << 29,
    )
    by_kernel = captive.house.has_run_out_of_memory
    assert ended.error == "HOST_MEMORY_EXCEEDED" or (ended.code == -9 and by_kernel), ended


@every_level
def test_signals_that_are_ignored_do_not_help(captive: Captive) -> None:
    """Not even in children that have left the session."""
    ended = captive.run(
        """
import os, signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
__import__("ctypes").CDLL(None).prctl(15, b"memgate-deaf", 0, 0, 0)
if os.fork() == 0:
    os.setsid()
while True:
    time.sleep(1)
""",
        seconds=1.0,
    )
    assert ended.error == "TIME_LIMIT_EXCEEDED"
    wait_until(lambda: not _are_there("memgate-deaf"), "all are gone", 20)


@every_level
def test_calls_that_reach_others_fail(captive: Captive) -> None:
    """ptrace, memory of others, mounts, namespaces, the kernel's own calls."""
    found = captive.ask(
        f"""
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
calls = dict(
    ptrace=(101, 16, {os.getpid()}, 0, 0), traceme=(101, 0, 0, 0, 0),
    readv=(310, {captive.process.pid}, 0, 0, 0, 0, 0),
    mount=(165, b"none", b"/tmp", b"tmpfs", 0, 0), unshare=(272, 0x10000000),
    clone=(56, 0x10000011, 0, 0, 0, 0), bpf=(321, 0, 0, 0), keyctl=(250, 0, -3, 0),
    setns=(308, 0, 0), uring=(425, 1, 0), chroot=(161, b"/tmp"), x32=(0x40000000 + 39,),
)
print(json.dumps([name for name, call in calls.items() if libc.syscall(*call) >= 0]))
"""
    )
    assert found == []


@every_level
def test_nothing_outside_of_its_directory_is_written_or_seen(
    captive: Captive, tmp_path: Path
) -> None:
    """Not even what everybody may read and write."""
    (tmp_path / "file").write_text("before")
    for path in (tmp_path, *tmp_path.parents[:2], tmp_path / "file"):
        path.chmod(path.stat().st_mode | 0o777 if path.name else 0)
    found = captive.ask(
        f"""
import json, os
done = []
for path in ({str(tmp_path / "file")!r}, {str(tmp_path / "new")!r}, "/etc/x", "/usr/x", "/x",
             "/dev/x", "/proc/sys/kernel/hostname", {str(Path(__file__))!r}):
    try:
        open(path, "a").close()
        done.append(path)
    except OSError:
        pass
for path in ({str(tmp_path / "file")!r}, "/etc/shadow", "/root/.bashrc", "/etc/machine-id"):
    try:
        open(path).read()
        done.append(path)
    except OSError:
        pass
with open(os.path.join(os.environ["TMPDIR"], "mine"), "w") as file:
    file.write("x")
print(json.dumps([done, os.path.isdir(os.environ["HOME"]), os.listdir(os.environ["HOME"])]))
"""
    )
    assert found == [[], True, []]
    assert (tmp_path / "file").read_text() == "before"


@every_level
def test_no_rights_are_left_or_gained(captive: Captive) -> None:
    """No capability that changes anything, and no new privileges."""
    found = captive.ask(
        "import json; print(json.dumps(dict(line.split(':', 1) for line in"
        " open('/proc/self/status'))))"
    )
    held = int(found["CapEff"], 16) & ~(1 << 2)  # to read what Landlock allows is no harm
    assert (held, found["NoNewPrivs"].strip(), found["Seccomp"].strip()) == (0, "1", "2")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give jobs users of their own")
@pytest.mark.parametrize("level", [_LEVELS[0], _LEVELS[2]])
def test_each_job_of_root_is_a_user_of_its_own(captive: Captive) -> None:
    """Not the worker, not another job, and nobody on the machine."""
    code = "import json, os; print(json.dumps([os.getuid(), os.getgid(), os.getgroups()]))"
    first, second = captive.ask(code), captive.ask(code)
    assert first[0] != second[0]
    assert 0 not in (first[0], first[1], second[0], second[1])
    assert (first[2], second[2]) == ([], [])


@every_level
def test_the_answers_of_other_jobs_cannot_be_forged(captive: Captive) -> None:
    """Nothing that its process had open is open for a job, but its own files."""
    found = captive.ask(
        """
import json, os
opened = {os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if int(n) > 2
          and os.path.lexists(f"/proc/self/fd/{n}")}
print(json.dumps(sorted(one for one in opened if not one.startswith(("/proc", "/dev/null")))))
"""
    )
    # its own output; the rest is where nothing goes
    assert [one for one in found if "(deleted)" not in one] == []
