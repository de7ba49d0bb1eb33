"""A URL -> a connection to the queue's server: the one it names, or the primary by Sentinel.

A server that was the primary and no longer is, or that has lost its replicas, refuses writes. Its
refusal counts as a lost connection, so that the command is sent again over a new one: Sentinel, or
the managed service behind the address, knows by then where the primary is.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlsplit

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.exceptions import ConnectionError as LostConnectionError
from redis.exceptions import MasterDownError, ReadOnlyError, ResponseError
from redis.retry import Retry
from redis.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from memgate.mistakes import RuleError

_SENTINEL_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
_SENTINEL_PORT = 26379

#: how long one Sentinel may take to say where the primary is, before the next one is asked
_SENTINEL_SECONDS = 0.5

_FORM = "redis+sentinel://HOST:PORT,HOST:PORT/NAME/0, where NAME is the primary's name in Sentinel"


class NoReplicasError(LostConnectionError):
    """The server has fewer replicas than it needs to take writes (``min-replicas-to-write``)."""


class StoreDiskError(LostConnectionError):
    """The server cannot write to its disk, and so takes nothing new."""


class SentinelAddress(NamedTuple):
    """What a ``redis+sentinel://`` URL says."""

    sentinels: list[tuple[str, int]]
    name: str
    #: the same for a single server, whose host means nothing
    server_url: str

    @classmethod
    def parse(cls, url: str) -> SentinelAddress | None:
        """Take such a URL apart; None if it is of another kind.

        Raises:
            RuleError: if a part of it is missing or wrong.
        """
        scheme, _, rest = url.partition("://")
        if scheme not in _SENTINEL_SCHEMES:
            return None
        parts = urlsplit(f"//{rest}")
        login, at, hosts = parts.netloc.rpartition("@")
        name, _, database = parts.path.strip("/").partition("/")
        if not hosts or not name or not (database or "0").isdecimal():
            raise RuleError(f"with Sentinel, write it as {_FORM}")  # not the value: passwords
        query = f"?{parts.query}" if parts.query else ""
        server = f"{_SENTINEL_SCHEMES[scheme]}://{login}{at}primary/{database or 0}{query}"
        return cls([_host_and_port(host) for host in hosts.split(",")], name, server)


def _host_and_port(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise RuleError(f"{text!r} is not a host and port; write it as {_FORM}")
    return host, port or _SENTINEL_PORT


class _Heedful(AbstractConnection):
    """A connection that is lost when its server says that it is not the primary any more."""

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read an answer."""
        # redis-py keeps a connection to a Sentinel's primary after a time-out or a signal: the
        # answer that comes late would be taken for that to the next command
        kwargs.setdefault("disconnect_on_error", True)
        try:
            return super().read_response(*args, **kwargs)
        except ResponseError as error:
            lost = _means_lost(error)
            if lost is None:
                raise
            self.disconnect()  # type: ignore[no-untyped-call]
            raise lost from error


def _means_lost(error: ResponseError) -> LostConnectionError | None:
    """Return what an answer means if it says that this is not the primary, or not a whole one."""
    text = str(error)
    if text.startswith("NOREPLICAS"):
        return NoReplicasError(text)
    if text.startswith("MISCONF"):  # a worker waits until that is over, as for a lost server
        return StoreDiskError(text)
    if isinstance(error, ReadOnlyError | MasterDownError) or text.startswith("UNBLOCKED"):
        return LostConnectionError("this server is no longer the primary")
    return None


class _Tcp(_Heedful, Connection):
    """To a host and port."""


class _Tls(_Heedful, SSLConnection):
    """The same, encrypted."""


class _Unix(_Heedful, UnixDomainSocketConnection):
    """To a socket of this machine."""


class _SentinelTcp(_Heedful, SentinelManagedConnection):
    """To whatever the primary is now."""

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send a command, over a new connection if the last one was lost."""
        if not self._sock:
            # redis-py would go back to where it was, even if another server is the primary by now
            self._connect_retry()  # type: ignore[no-untyped-call]
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]


class _SentinelTls(_SentinelTcp, SentinelManagedSSLConnection):
    """The same, encrypted."""


_CLASSES: dict[Any, Any] = {
    SSLConnection: _Tls,
    UnixDomainSocketConnection: _Unix,
}


def connect(url: str, **options: Any) -> Redis:
    """Open a connection when it is first used; ``options`` are those of ``Redis``."""
    address = SentinelAddress.parse(url)
    if address is not None:
        return _connect_by_sentinel(address, options)
    given: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    kind = _CLASSES.get(given.pop("connection_class", Connection), _Tcp)
    pool = ConnectionPool(connection_class=kind, **(options | given))
    return Redis.from_pool(pool)


def _connect_by_sentinel(address: SentinelAddress, options: dict[str, Any]) -> Redis:
    given: dict[str, Any] = parse_url(address.server_url)  # type: ignore[no-untyped-call]
    is_tls = given.pop("connection_class", None) is SSLConnection
    del given["host"]
    login = {
        name: given.pop(f"sentinel_{name}")
        for name in ("username", "password")
        if f"sentinel_{name}" in given
    }
    ssl = {name: value for name, value in given.items() if name.startswith("ssl_")}
    sentinel = Sentinel(
        address.sentinels,
        sentinel_kwargs={
            "socket_connect_timeout": _SENTINEL_SECONDS,
            "socket_timeout": _SENTINEL_SECONDS,
            "retry": Retry(NoBackoff(), 0),
            "ssl": is_tls,
            **login,
            **ssl,
        },
    )  # type: ignore[no-untyped-call]
    pool = SentinelConnectionPool(
        address.name,
        sentinel,
        connection_class=_SentinelTls if is_tls else _SentinelTcp,
        **(options | given),
    )  # type: ignore[no-untyped-call]
    return Redis.from_pool(pool)
