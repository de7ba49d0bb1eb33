"""A real Slurm on this machine, loopback only, with memgate's plugins: started and ended by tests.

One node with two fake GPUs (an A100 and a T4: device files of which nothing is asked). Commands run
as root, or as ``nobody`` where it matters who asks; munge tells slurmctld who that is.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.slurm_accounting import PROGRAMS, add_people, start_accounting
from tests.running import PortTakenError, free_port, retry_taken, wait_until

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "deploy" / "slurm"

_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "lua5.1", "setpriv")

needs_accounting = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)),
    reason="slurmdbd or MariaDB is not installed here: make parts",
)

needs_slurm = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, _PROGRAMS)),
    reason="Slurm is not installed here, or this is not root: make parts",
)

_CONF = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.sock
CredType=cred/munge
SlurmctldPort={port}
SlurmdPort={node_port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldDebug=verbose
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
{accounting}
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,enable_user_top
MessageTimeout=10
KillWait=2
GresTypes=gpu
JobSubmitPlugins=lua
CliFilterPlugins={cli_filter}
Prolog={home}/prolog.sh
Epilog={home}/epilog.sh
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=8000 Gres=gpu:a100:1,gpu:t4:1
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE OverSubscribe=FORCE:8 State=UP
PartitionName=rehearsals Nodes={host} MaxTime=15 OverSubscribe=FORCE:8 PriorityTier=10 State=UP
PartitionName=whole Nodes={host} MaxTime=INFINITE OverSubscribe=EXCLUSIVE State=UP
"""

#: what a program says of a port that another program has
_TAKEN = "Address already in use"

_GRES = """
NodeName={host} Name=gpu Type=a100 File={home}/nvidia0
NodeName={host} Name=gpu Type=t4 File={home}/nvidia1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a command did."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def job(self) -> int:
        """The id of the job that sbatch submitted."""
        assert self.status == 0, self.err
        return int(self.out.split()[-1])


class SlurmLab:
    """A controller and a node. A context manager: it ends them, and what they have begun."""

    def __init__(
        self, home: Path, *, with_cli_filter: bool = False, with_accounting: bool = False
    ) -> None:
        self.home = home
        self.etc = home / "etc"
        self._stack = ExitStack()
        self._loaded_at = 0.0
        self._cli_filter = "lua" if with_cli_filter else "none"
        self._with_accounting = with_accounting
        self._accounting = "AccountingStorageType=accounting_storage/none"
        self.environment = os.environ | {
            "SLURM_CONF": str(self.etc / "slurm.conf"),
            "PYTHONPATH": str(ROOT),
        }

    def __enter__(self) -> SlurmLab:
        self._write_files()
        try:
            self._start(
                "munged", "--foreground", f"--socket={self.home}/munge.sock", *self._munge()
            )
            wait_until((self.home / "munge.sock").exists, "munged", 20)
            if self._with_accounting:
                self._accounting = start_accounting(self.home, self._start).conf
            retry_taken(self._start_slurm)
            if self._with_accounting:
                add_people(self._must_run)
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start_slurm(self) -> None:
        """Start the controller and the node; their ports must be in the configuration."""
        self._write_conf()
        daemons = {
            "slurmctld": self._start("slurmctld", "-D", "-c"),
            "slurmd": self._start("slurmd", "-D", "-N", _host(), begin=self._open_to_users()),
        }

        def is_settled() -> bool:
            ended = any(process.poll() is not None for process in daemons.values())
            return ended or "idle" in self.run("sinfo", "-h", "-o", "%T").out

        wait_until(is_settled, f"Slurm, see {self.home}")
        for name, process in daemons.items():
            if process.poll() is not None:
                for other in daemons.values():
                    _end(other)
                said = (self.home / f"{name}.log").read_text()
                raise PortTakenError(said) if _TAKEN in said else AssertionError(said)

    def __exit__(self, *_: object) -> None:
        self.clear()
        self._stack.close()

    def _must_run(self, *command: str) -> None:
        ran = self.run(*command)
        assert ran.status == 0, (command, ran)

    def clear(self) -> None:
        """Cancel all jobs, so that they stand in nobody's way."""
        for state in ("PENDING", "RUNNING"):
            self.run("scancel", "--quiet", f"--state={state}")

    def _munge(self) -> list[str]:
        names = {"key-file": "munge.key", "pid-file": "munged.pid", "seed-file": "munged.seed"}
        return [f"--{option}={self.home / name}" for option, name in names.items()]

    def _write_files(self) -> None:
        self.home.chmod(0o755)  # for nobody
        for name in ("etc", "state", "spool", "work"):
            (self.home / name).mkdir()
        (self.home / "work").chmod(0o777)
        (self.home / "munge.key").touch(mode=0o600)
        (self.home / "munge.key").write_bytes(os.urandom(1024))
        for number in range(2):
            os.mknod(self.home / f"nvidia{number}", 0o20666, os.makedev(1, 3))
        for name in ("job_submit.lua", "cli_filter.lua"):
            if (PLUGINS / name).exists():
                shutil.copy(PLUGINS / name, self.etc)
        for name in ("prolog.sh", "epilog.sh"):  # as long as a test wants nothing measured
            ours = self.measuring / name
            (self.home / name).write_text(f"#!/bin/sh\n[ ! -x {ours} ] || exec {ours}\n")
            (self.home / name).chmod(0o755)
        shutil.copytree(PLUGINS / "memgate", self.etc / "memgate")
        shutil.copy(PLUGINS / "memgate.policy.json", self.etc)
        self.set()

    def _write_conf(self) -> None:
        places = {
            "home": self.home,
            "host": _host(),
            "port": free_port(),
            "node_port": free_port(),
            "cpus": os.cpu_count(),
            "cli_filter": self._cli_filter,
            "accounting": self._accounting,
        }
        (self.etc / "slurm.conf").write_text(_CONF.format(**places))
        (self.etc / "gres.conf").write_text(_GRES.format(**places))

    def _open_to_users(self) -> list[str]:
        """Return what lets jobs of ordinary users run our Python, if it is in a closed directory.

        Nothing is changed on the machine: the node sees another directory there.
        """
        interpreter = Path(sys.base_prefix)
        closed = [one for one in reversed(interpreter.parents) if not one.stat().st_mode & 0o005]
        if not closed:
            return []
        first = interpreter.relative_to(closed[0]).parts[0]
        view = self.home / "view"
        view.mkdir(exist_ok=True)
        script = (
            f"mount -t tmpfs -o mode=755 none {view} && mkdir {view}/{first}"
            f" && mount --rbind {closed[0]}/{first} {view}/{first}"
            f' && mount --rbind {view} {closed[0]} && exec "$@"'
        )
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]

    def _start(
        self, program: str, *arguments: str, begin: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        path = shutil.which(program)
        assert path is not None
        with (self.home / f"{program}.log").open("wb") as log:
            process = subprocess.Popen(
                [*begin, path, *arguments], env=self.environment, stdout=log, stderr=log
            )
        self._stack.callback(_end, process)
        return process

    def set(self, **settings: Any) -> None:
        """Write memgate.conf.lua: these settings, and a map of the two GPUs."""
        ours = {"gpu_of_type": {"a100": "a100-40", "t4": "t4"}, "audit_file": str(self.spool)}
        self._write(self.etc / "memgate.conf.lua", f"return {to_lua(ours | settings)}\n")

    def set_policy(self, policy: dict[str, Any]) -> None:
        """Write memgate.policy.json."""
        self._write(self.etc / "memgate.policy.json", json.dumps(policy))

    @staticmethod
    def _write(path: Path, text: str) -> None:
        """Replace a file, so that whoever reads it never sees half of it."""
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.chmod(0o644)
        fresh.rename(path)

    @property
    def measuring(self) -> Path:
        """Where a test puts the node's prolog and epilog."""
        return self.home / "measuring"

    @property
    def spool(self) -> Path:
        """Where the plugin leaves the audit's records."""
        return self.home / "audit.jsonl"

    def audited(self) -> list[dict[str, Any]]:
        """Return the records that nobody has fetched yet."""
        return [json.loads(line) for line in self.spool.read_text().splitlines()]

    def reload(self) -> None:
        """Have slurmctld load job_submit.lua anew, and forget what it has remembered."""
        self._loaded_at = max(self._loaded_at, time.time()) + 2  # it looks at whole seconds
        os.utime(self.etc / "job_submit.lua", (self._loaded_at, self._loaded_at))

    def run(self, *command: str, nobody: bool = False, user: str = "") -> Ran:
        """Run a command; as nobody, or another user, who may do nothing to others' jobs."""
        user = user or ("nobody" if nobody else "")
        began = time.monotonic()
        ran = subprocess.run(
            [*(_become(user) if user else []), *command],
            env=self.environment | ({"USER": user} if user else {}),
            cwd=self.home / "work",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        seconds = time.monotonic() - began
        return Ran(status=ran.returncode, out=ran.stdout, err=ran.stderr, seconds=seconds)

    def sbatch(
        self,
        *options: str,
        head: str = "",
        command: str = "exit 0",
        nobody: bool = False,
        user: str = "",
    ) -> Ran:
        """Submit a script whose head holds directive lines."""
        script = self.home / "work" / f"job{time.monotonic_ns()}.sh"
        script.write_text(f"#!/bin/sh\n{head}\n{command}\n")
        script.chmod(0o644)
        sbatch = ("sbatch", "--output=/dev/null", *options, str(script))
        return self.run(*sbatch, nobody=nobody, user=user)

    def job(self, job_id: int) -> dict[str, Any]:
        """Return what slurmctld says of a job."""
        jobs = json.loads(self.run("squeue", "--json").out)["jobs"]
        found: dict[str, Any] = next(job for job in jobs if job["job_id"] == job_id)
        return found

    def record(self, job_id: int) -> Any:
        """Return memgate's record in a job's AdminComment; None if there is none."""
        comment = self.job(job_id)["admin_comment"]
        return json.loads(comment)["memgate"] if comment else None

    def wait_for(self, job_id: int, state: str, seconds: float = 30) -> None:
        """Wait until a job is in a state."""
        reached: Callable[[], bool] = lambda: self.job(job_id)["job_state"] == state  # noqa: E731
        wait_until(reached, f"job {job_id} {state}", seconds)

    @property
    def log(self) -> str:
        """What slurmctld has logged."""
        return (self.home / "slurmctld.log").read_text()


def to_lua(value: object) -> str:
    """Write a value in Lua."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{to_lua(k)}] = {to_lua(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(to_lua, value)) + "}"
    return json.dumps(value)


def _become(user: str) -> list[str]:
    """Return what begins a command of another user."""
    who = pwd.getpwnam(user)
    return ["setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups"]


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
