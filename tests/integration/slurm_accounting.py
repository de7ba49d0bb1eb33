"""Slurm's accounting for a lab: MariaDB and slurmdbd, on loopback, with real accounts and QOS.

The accounts are those of ``docs/policy.md``. Where accounting is enforced, a user without an
association cannot submit at all, and every job has an account and a QOS, said or not.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.running import PortTakenError, free_port, retry_taken, wait_until

PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacctmgr", "sacct")

#: starts a program of the lab that ends with it: a program, and its arguments
Start = Callable[..., subprocess.Popen[bytes]]

_CONF = """
AuthType=auth/munge
AuthInfo=socket={home}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
CommunicationParameters=NoInAddrAny
SlurmUser=root
PidFile={home}/slurmdbd.pid
DebugLevel=verbose
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=lab
StorageLoc=accounting
"""

#: what is lost in a crash is no loss here
_QUICK = (
    *("--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M"),
    *("--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync"),
)

#: of slurm.conf, if there is accounting
SLURM_CONF = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={home}/munge.sock
AccountingStorageEnforce=associations,limits,qos
"""

#: whose jobs are on which account; the first is the user's default
ACCOUNTS = {"nobody": ("lab1", "lab7", "ops"), "games": ("lab7",)}
QOS = ("normal", "trial", "paying")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """A running slurmdbd, and the directory with munge's socket."""

    home: Path
    port: int

    @property
    def conf(self) -> str:
        """What slurm.conf needs to say."""
        return SLURM_CONF.format(home=self.home, port=self.port)


def start_accounting(home: Path, start: Start) -> Accounting:
    """Start a database and slurmdbd; munged runs already."""
    data = home / "database"
    options = ["--no-defaults", "--user=root", f"--datadir={data}", *_QUICK]
    made = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
    subprocess.run(["mariadb-install-db", *options, *made], check=True, capture_output=True)
    database_port = retry_taken(lambda: _start_database(home, options, start))
    return retry_taken(lambda: _start_daemon(home, database_port, start))


def _start_daemon(home: Path, database_port: int, start: Start) -> Accounting:
    port = free_port()
    conf = home / "etc" / "slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.write_text(_CONF.format(home=home, port=port, database_port=database_port))
    daemon = start("slurmdbd", "-D")
    log = home / "slurmdbd.log"
    _wait(daemon, log, lambda: "slurmdbd version" in log.read_text())
    return Accounting(home=home, port=port)


def _start_database(home: Path, options: list[str], start: Start) -> int:
    port = free_port()
    begin = home / "database.sql"
    begin.write_text(
        "CREATE DATABASE IF NOT EXISTS accounting;\n"
        "CREATE USER IF NOT EXISTS slurm@'127.0.0.1' IDENTIFIED BY 'lab';\n"
        "GRANT ALL ON accounting.* TO slurm@'127.0.0.1';\n"
    )
    network = ["--bind-address=127.0.0.1", f"--port={port}", f"--socket={home}/database.sock"]
    daemon = start("mariadbd", *options, *network, "--skip-name-resolve", f"--init-file={begin}")
    log = home / "mariadbd.log"
    _wait(daemon, log, lambda: "ready for connections" in log.read_text())
    return port


def _wait(daemon: subprocess.Popen[bytes], log: Path, is_ready: Callable[[], bool]) -> None:
    wait_until(lambda: daemon.poll() is not None or is_ready(), str(log), 60)
    if daemon.poll() is not None:
        said = log.read_text()
        raise PortTakenError(said) if "already in use" in said else AssertionError(said)


def add_people(run: Callable[..., object]) -> None:
    """Make the accounts, QOS and users; ``run`` runs a command that must succeed."""
    accounts = sorted({account for many in ACCOUNTS.values() for account in many})
    named = [name for name in QOS if name != "normal"]  # which is there from the beginning
    run("sacctmgr", "-i", "add", "qos", ",".join(named))
    run("sacctmgr", "-i", "add", "account", ",".join(accounts), f"qos={','.join(QOS)}")
    for user, own in ACCOUNTS.items():
        names = [f"account={','.join(own)}", f"defaultaccount={own[0]}", "defaultqos=normal"]
        run("sacctmgr", "-i", "add", "user", user, *names, f"qos={','.join(QOS)}")
