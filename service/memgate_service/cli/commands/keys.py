"""``memgate keys``: who may ask. Talks to the queue directly, so it works when nobody has a key."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from memgate.errors import InputError, PassingError
from memgate.mistakes import suggest
from memgate.near_names import find_near
from memgate.owner import MAX_OWNER_TEXT
from memgate_service.admission.kubernetes.cluster import Cluster
from memgate_service.admission.kubernetes.secret import Secret
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.client import QueueClient, QueueError
from memgate_worker.queue.keys import KeyRing, Right, Role

keys_app = typer.Typer(
    name="keys",
    no_args_is_help=True,
    help="Make, list and revoke API keys. They are kept where jobs are: MEMGATE_REDIS_URL, or the"
    " queue of a running `memgate up`.",
)

DataOption = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="What `memgate up` was given as --data.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

#: where `memgate up` keeps jobs unless told otherwise
DEFAULT_DATA = Path(".memgate")


class QueueAwayError(PassingError):
    """The keys cannot be reached."""

    code = "QUEUE_UNREACHABLE"

    @classmethod
    def of(cls, error: QueueError) -> QueueAwayError:
        """Say that the queue is away, and where to name it."""
        return cls(
            f"the queue cannot be reached ({type(error).__name__}): set MEMGATE_REDIS_URL, or"
            " give --data of a running `memgate up`"
        )


class RoleName(StrEnum):
    """A role, as it is written on the command line."""

    READ = "read"
    SUBMIT = "submit"
    GATE = "gate"
    ADMIN = "admin"


@keys_app.command("create")
def create_command(
    name: Annotated[str, typer.Argument(help="Who it is for; shown by `memgate keys list`.")],
    role: Annotated[
        RoleName,
        typer.Option(
            help="A set of rights. read: see one's own; submit: also ask; gate: also ask for"
            " others, urgently; admin: all."
        ),
    ] = RoleName.SUBMIT,
    rights: Annotated[
        str,
        typer.Option(
            metavar="RIGHT,...",
            help=f"Instead of a role: some of {', '.join((~Right(0)).names)}.",
        ),
    ] = "",
    user: Annotated[
        str,
        typer.Option(help="Whose key it is, as gates call them: it sees what gates ask for them."),
    ] = "",
    data: DataOption = DEFAULT_DATA,
    json_: JsonOption = False,
    secret: Annotated[
        str | None,
        typer.Option(
            metavar="SECRET",
            help="Put it into this Kubernetes Secret, under `key`, and print its id only; does"
            " nothing if a valid key is already there.",
        ),
    ] = None,
    namespace: Annotated[str, typer.Option(help="Where the Secret is.")] = "default",
) -> None:
    """Make a key and print it, once: only a digest of it is kept.

    Example: memgate keys create ci --role submit

    Example: memgate keys create dashboard --rights read-own,read-all
    """
    if not name.strip() or len(name) > 100 or not name.isprintable():
        raise InputError(f"NAME is {name!r:.60}: 1 to 100 printable characters")
    if len(user) > MAX_OWNER_TEXT or not user.isprintable():
        raise InputError(f"--user is {user!r:.60}: up to {MAX_OWNER_TEXT} printable characters")
    allowed = _read_rights(rights) if rights else Role[role.name].rights
    with _Keys(data) as keys:
        if secret is not None:
            typer.echo(_keep_in_secret(keys, name.strip(), allowed, secret, namespace))
            return
        key = keys.make(name.strip(), allowed, user)
    typer.echo(json.dumps({"id": key.split("_")[1], "key": key}) if json_ else key)


def _read_rights(text: str) -> Right:
    """Read a list of rights.

    Raises:
        InputError: if there is no such right, with the one that is nearest.
    """
    rights = Right(0)
    for name in filter(None, (one.strip() for one in text.split(","))):
        try:
            rights |= Right.named(name)
        except KeyError:
            known = (~Right(0)).names
            near = suggest(find_near(name, known))
            rule = f"--rights is {name!r:.40}: it must be some of {', '.join(known)}"
            raise InputError(f"{rule}; {near}" if near else rule) from None
    return rights


@keys_app.command("list")
def list_command(data: DataOption = DEFAULT_DATA, json_: JsonOption = False) -> None:
    """Show the valid keys, without their secrets."""
    with _Keys(data) as keys:
        found = keys.list()
    rows = [
        {
            "id": key.key_id,
            "name": key.name,
            "role": key.role_name,
            "created_at": key.created_at,
            "rights": key.rights.names,
            "user": key.user,
        }
        for key in found
    ]
    if json_:
        typer.echo(json.dumps(rows))
        return
    table = Table("id", "name", "role", "created", "user", box=None)
    for key in found:
        table.add_row(key.key_id, key.name, key.role_name, key.created_at, key.user)
    Console(markup=False).print(table)


@keys_app.command("revoke")
def revoke_command(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="See `memgate keys list`.")],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Revoke a key; running services notice within ten seconds."""
    with _Keys(data) as keys:
        keys.revoke(key_id)
    typer.echo(f"{key_id} is revoked")


def _keep_in_secret(keys: KeyRing, name: str, rights: Right, secret: str, namespace: str) -> str:
    """Make sure that a Secret holds a valid key with these rights; return what was done."""
    file = Secret(
        Cluster.connect(AdmissionSettings.from_environment().kubeconfig), namespace, secret
    )
    held = keys.check(file.read().get("key", b"").decode())
    if held is not None and rights in held.rights:
        return f"{secret} holds {held.key_id}, which is in force"
    key = keys.make(name, rights)
    key_id = key.split("_")[1]
    try:
        file.write({"key": key.encode()})
    except BaseException:
        keys.revoke(key_id)  # nobody has it
        raise
    return f"{secret} holds {key_id}, which is new"


class _Keys:
    """The keys, while a block runs; if they cannot be reached, the error is one sentence."""

    def __init__(self, data: Path) -> None:
        self._queue = QueueClient(queue_settings(data))

    def __enter__(self) -> KeyRing:
        return self._queue.keys

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._queue.close()
        if isinstance(error, QueueError):
            raise QueueAwayError.of(error) from None


def queue_settings(data: Path) -> ServiceSettings:
    """Return where the queue is: as the environment says, or that of a running `memgate up`."""
    settings = ServiceSettings.from_environment()
    path = data.resolve() / "valkey.sock"
    if "MEMGATE_REDIS_URL" in os.environ:
        return settings
    if not path.exists():
        raise InputError(
            f"there is no running `memgate up` in {data}: give its --data, or set"
            " MEMGATE_REDIS_URL (long paths: the log in DIR/logs/valkey.log names the socket)"
        )
    return settings.model_copy(update={"redis_url": f"unix://{path}"})
