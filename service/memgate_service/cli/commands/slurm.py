"""``memgate slurm``: what runs next to Slurm's controller. docs/slurm.md."""

from __future__ import annotations

import os
import sys
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


Notify = Annotated[
    str,
    typer.Option(
        metavar="PROGRAM", help="Sends mail to owners, called as Slurm calls its MailProg."
    ),
]
#: says that a program still looks; `memgate doctor --slurm` reads it
_ALIVE = Path("/var/spool/memgate/rehearse.alive")


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
    notify: Notify = "",
) -> None:
    """Release held jobs when memgate has an answer, follow up what was let in without one, and
    send the audit's records. Runs as an administrator of Slurm.

    Example: memgate slurm release --server http://127.0.0.1:8080 --key-file /etc/slurm/memgate.key
    """
    client = _client(server, api_key, key_file)
    from memgate_service.admission.core.policy_file import PolicyFile
    from memgate_service.admission.slurm.commands import SlurmCommands
    from memgate_service.admission.slurm.notices import Notices
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
            notices=Notices(notify, typer.echo),
        )
        look = _alive(releaser.look, audit_file.with_name("release.alive"))
        if once:
            typer.echo(f"{look()} jobs still wait for an answer")
        else:
            _look_again(look, every)


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


@slurm_app.command("used")
def used_command(
    jobs: Annotated[list[int], typer.Argument(metavar="JOB...", help="Numbers of ended jobs.")],
) -> None:
    """Say what ended jobs asked for, what was predicted, what they used, and what would have
    sufficed; in an epilog, or by a job's owner.

    Example: memgate slurm used 104
    """
    from memgate_service.admission.slurm.usage import read_use

    for job in jobs:
        typer.echo(read_use(job))


@slurm_app.command("why")
def why_command(
    jobs: Annotated[list[int], typer.Argument(metavar="JOB...", help="Numbers of jobs.")],
) -> None:
    """Say what memgate did with jobs, and why: held until when, canceled, or let in.

    Example: memgate slurm why 104
    """
    from memgate_service.admission.slurm.why import read_why

    for job in jobs:
        typer.echo(read_why(job))


Directory = Annotated[
    Path, typer.Option(metavar="DIR", help="Where a node keeps what is being measured.")
]
_MEASURING = Path("/var/spool/memgate/measuring")


@slurm_app.command("prolog")
def prolog_command(directory: Directory = _MEASURING) -> None:
    """Begin to measure the GPU memory of the job whose prolog this is. Runs as root on its node,
    and always succeeds.

    Example: memgate slurm prolog
    """
    from memgate_service.admission.slurm.measuring.prolog import begin_job

    begin_job(os.environ, directory, _say_problem)


@slurm_app.command("watch", hidden=True)
def watch_command(job: Annotated[int, typer.Argument()], directory: Directory = _MEASURING) -> None:
    """Look at the GPUs of a job until it ends; `memgate slurm prolog` starts this."""
    from memgate_service.admission.slurm.measuring.prolog import watch_job

    watch_job(job, directory)


@slurm_app.command("epilog")
def epilog_command(
    directory: Directory = _MEASURING,
    server: Server = None,
    api_key: ApiKey = None,
    key_file: KeyFile = None,
    tell: Annotated[bool, typer.Option(help="Write a line to the end of the job's output.")] = True,
) -> None:
    """Say what the job whose epilog this is has taken of its GPUs: to its owner, at the end of its
    output, and to memgate. Runs as root on its node, and always succeeds.

    Example: memgate slurm epilog --server http://10.0.0.5:8080
    """
    from memgate_service.admission.slurm.measuring.epilog import end_job

    line = end_job(
        os.environ,
        directory,
        lambda: _client(server, api_key, key_file),
        _say_problem,
        is_told=tell,
    )
    typer.echo(line)


def _say_problem(text: str) -> None:
    typer.echo(f"memgate: {text}", err=True)


@slurm_app.command("rehearse")
def rehearse_command(
    server: Server = None,
    api_key: ApiKey = None,
    key_file: KeyFile = None,
    client_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with a key that users may read.")
    ] = None,
    once: Once = False,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How often to look.")
    ] = 2,
    partition: Annotated[
        str, typer.Option(help="Where rehearsals run; the job's own if not given.")
    ] = "",
    qos: Annotated[str, typer.Option(help="With which quality of service they run.")] = "",
    account: Annotated[
        str, typer.Option(help="On whose account; the job's own if not given.")
    ] = "",
    at_once: Annotated[
        int, typer.Option(min=1, help="How many run at one time; of a user, one.")
    ] = 4,
    memory: Annotated[
        float, typer.Option(min=0.25, metavar="GIB", help="What each may take of a node.")
    ] = 8,
    cpus: Annotated[int, typer.Option(min=1, help="Processors of each.")] = 2,
    cache: Annotated[
        str,
        typer.Option(metavar="DIR", help="On compute nodes, for what is built once for a user."),
    ] = "/var/cache/memgate",
    results: Annotated[
        Path, typer.Option(metavar="FILE", help="Remembers what rehearsals found.")
    ] = Path("/var/lib/memgate-slurm/rehearsals.json"),
    policy_file: Annotated[
        Path, typer.Option("--policy", metavar="FILE", help="The policy that the plugin reads.")
    ] = Path("/etc/slurm/memgate.policy.json"),
    notify: Notify = "",
    alive: Annotated[
        Path, typer.Option(metavar="FILE", help="Says that this program still looks.")
    ] = _ALIVE,
) -> None:
    """Run jobs that nobody has described once, without GPUs, as their owners, and let them in or
    cancel them by what that shows. Runs as root on the controller.

    Example: memgate slurm rehearse --server http://10.0.0.5:8080 --partition cpu --qos free
    """
    client = _client(server, api_key, key_file)
    from memgate.client.servers import find_server
    from memgate.units import GIB
    from memgate_service.admission.core.policy_file import PolicyFile
    from memgate_service.admission.slurm.commands import SlurmCommands
    from memgate_service.admission.slurm.notices import Notices
    from memgate_service.admission.slurm.rehearsals.broker import Broker, RehearsalLimits
    from memgate_service.admission.slurm.rehearsals.job_files import find_state
    from memgate_service.admission.slurm.rehearsals.known import KnownResults
    from memgate_service.admission.slurm.rehearsals.starting import CompanionPlace

    place = CompanionPlace(
        server=find_server(server, None)[0],
        key_file=str(client_key_file or ""),
        partition=partition,
        qos=qos,
        account=account,
        num_cpus=cpus,
        memory_bytes=int(memory * GIB),
        cache=cache,
    )
    with client, suppress(KeyboardInterrupt):
        broker = Broker(
            client,
            SlurmCommands(),
            place,
            find_state(),
            typer.echo,
            limits=RehearsalLimits(max_rehearsals=at_once),
            known=KnownResults(results),
            policy_file=PolicyFile(policy_file, typer.echo, is_optional=True),
            notices=Notices(notify, typer.echo),
        )
        look = _alive(broker.look, alive)
        if once:
            typer.echo(f"{look()} jobs wait for a rehearsal")
        else:
            _look_again(look, every)


@slurm_app.command("companion", hidden=True)
def companion_command() -> None:
    """Rehearse a job on this node, as its owner; `memgate slurm rehearse` submits this."""
    from memgate import Client
    from memgate_service.admission.slurm.rehearsals.companion import do_errand, read_errand, report

    errand = read_errand(sys.stdin.buffer.read())
    report(do_errand(errand, lambda url, key: Client(url, api_key=key or None, num_tries=2)))


def _alive(look: Callable[[], int], path: Path) -> Callable[[], int]:
    """Return the same, but for a file that is touched each time it has looked."""

    def look_and_say_so() -> int:
        found = look()
        with suppress(OSError):  # without the directory nothing else works, and the doctor says so
            path.touch()
        return found

    return look_and_say_so


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
