"""``memgate slurm``: what runs next to Slurm's controller. docs/slurm.md."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from memgate.errors import InputError, MemgateError
from memgate_service.cli.commands.options import ApiKey

if TYPE_CHECKING:
    from memgate import Client
    from memgate_service.admission.core.policy import Action

slurm_app = typer.Typer(
    name="slurm",
    no_args_is_help=True,
    help="Release the jobs that Slurm holds for memgate, and report what jobs really took.",
)

Server = Annotated[
    str | None, typer.Option(metavar="URL", envvar="MEMGATE_URL", help="memgate's address.")
]
KeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File with the key, instead of MEMGATE_API_KEY."),
]
Once = Annotated[bool, typer.Option("--once", help="Look once, then end.")]


@slurm_app.command("release")
def release_command(
    server: Server = None,
    api_key: ApiKey = None,
    key_file: KeyFile = None,
    once: Once = False,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How often to look.")
    ] = 2,
    rejected: Annotated[
        str, typer.Option(help="A job that does not fit, or is described wrongly: cancel, hold.")
    ] = "cancel",
    uncertain: Annotated[
        str,
        typer.Option(help="A job that may not fit, or would fail: release, cancel, hold."),
    ] = "release",
    unanswered: Annotated[
        str, typer.Option(help="A job without an answer: wait, release, hold.")
    ] = "wait",
    patience: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="How long a job without a timer waits for an answer."
        ),
    ] = 600,
    policy_file: Annotated[
        Path, typer.Option("--policy", metavar="FILE", help="The policy that the plugin reads.")
    ] = Path("/etc/slurm/memgate.policy.json"),
    audit_file: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the plugin leaves the audit's records.")
    ] = Path("/var/spool/memgate/audit.jsonl"),
) -> None:
    """Release held jobs when memgate has an answer, follow up what was let in without one, and
    send the audit's records. Runs as an administrator of Slurm.

    Example: memgate slurm release --server http://127.0.0.1:8080 --key-file /etc/slurm/memgate.key
    """
    client = _client(server, api_key, key_file)
    from memgate_service.admission.core.policy_file import PolicyFile
    from memgate_service.admission.slurm.commands import SlurmCommands
    from memgate_service.admission.slurm.release import Releaser
    from memgate_service.admission.slurm.settling import ACTIONS, make_policy
    from memgate_service.admission.slurm.spool import Spool

    def action(option: str, text: str, *choices: str) -> Action:
        if text not in choices:
            raise InputError(f"{option} is {text!r}: it must be one of {', '.join(choices)}")
        return ACTIONS[text]

    policy = make_policy(
        rejected=action("--rejected", rejected, "cancel", "hold"),
        uncertain=action("--uncertain", uncertain, "release", "cancel", "hold"),
        unanswered=action("--unanswered", unanswered, "wait", "release", "hold"),
        patience_seconds=patience,
    )
    with client, suppress(KeyboardInterrupt):
        releaser = Releaser(
            client,
            SlurmCommands(),
            policy,
            typer.echo,
            policy_file=PolicyFile(policy_file, typer.echo, is_optional=True),
            spool=Spool(client, audit_file, typer.echo),
        )
        if once:
            typer.echo(f"{releaser.look()} jobs still wait for an answer")
        else:
            _look_again(releaser.look, every)


@slurm_app.command("outcomes")
def outcomes_command(
    memory: Annotated[
        Path, typer.Option(metavar="FILE", help="Remembers what was reported.")
    ] = Path("slurm-outcomes.json"),
    server: Server = None,
    api_key: ApiKey = None,
    key_file: KeyFile = None,
    once: Once = False,
    every: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="How often to look.")] = 60,
    shortest: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Shorter jobs are left out: accounting takes samples."
        ),
    ] = 120,
) -> None:
    """Report the GPU memory that Slurm's accounting measured (gres/gpumem, from Slurm 23.02 on).

    Example: memgate slurm outcomes --server http://127.0.0.1:8080 --once
    """
    client = _client(server, api_key, key_file)
    from memgate_service.admission.slurm.outcomes import Ledger, Reporter

    with client, suppress(KeyboardInterrupt):
        reporter = Reporter(client, Ledger(memory), typer.echo, shortest_seconds=shortest)
        if once:
            typer.echo(f"{reporter.look()} outcomes were reported")
        else:
            _look_again(reporter.look, every)


def _look_again(look: Callable[[], int], every_seconds: float) -> NoReturn:
    """Look again and again; failures are printed, and retried."""
    while True:
        try:
            look()
        except MemgateError as error:
            typer.echo(error.message)
        time.sleep(every_seconds)


def _client(server: str | None, api_key: str | None, key_file: Path | None) -> Client:
    from memgate import Client  # an extra: the rest of the command line does without it

    if key_file is not None:
        try:
            api_key = key_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--key-file {key_file}: {error}") from None
    return Client(server, api_key=api_key, num_tries=1)
