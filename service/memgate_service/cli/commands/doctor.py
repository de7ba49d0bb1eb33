"""``memgate doctor``: what is wrong with the set-up of a gate. Exit status 1 if anything is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memgate.errors import InputError
from memgate_service.cli.exit_status import FAILED

if TYPE_CHECKING:
    from memgate import Client
    from memgate_service.admission.core.doctor import Check


def doctor_command(
    slurm: Annotated[bool, typer.Option("--slurm", help="Look at Slurm's plugins.")] = False,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Look at the webhooks of Kubernetes.")
    ] = False,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Look at what keeps jobs apart on this machine.")
    ] = False,
    conf: Annotated[
        Path, typer.Option(metavar="FILE", help="--slurm: the settings of the plugins.")
    ] = Path("/etc/slurm/memgate.conf.lua"),
) -> None:
    """Find what an administrator has set up wrongly; nothing is changed.

    Example: memgate doctor --slurm
    """
    if [slurm, kubernetes, sandbox].count(True) != 1:
        raise InputError("say what to look at: --slurm, --kubernetes or --sandbox")
    if sandbox:
        _examine_sandbox()
        return
    checks = list(_examine_slurm(conf) if slurm else _examine_kubernetes())
    for check in checks:
        typer.echo(check.line)
    if any(check.wrong for check in checks):
        raise typer.Exit(FAILED)


def _examine_sandbox() -> None:
    """Print the level that a worker here would use, and why not a stricter one."""
    from memgate_worker.local import find_sandbox

    chosen = find_sandbox()
    typer.echo(f"sandbox: {chosen.level.value}")
    for refusal in chosen.refusals:
        typer.echo(f"  not {refusal}")


def _examine_slurm(conf: Path) -> Iterable[Check]:
    from memgate_service.admission.slurm.doctor import examine

    def connect(url: str, key: str) -> Client:
        from memgate import Client

        return Client(url, api_key=key or None, num_tries=1)

    return examine(conf, connect)


def _examine_kubernetes() -> Iterator[Check]:
    from memgate_service.admission.kubernetes.cluster import Cluster
    from memgate_service.admission.kubernetes.doctor import examine
    from memgate_service.admission.kubernetes.settings import AdmissionSettings

    settings = AdmissionSettings.from_environment()
    cluster = Cluster.connect(settings.kubeconfig)
    if not os.environ.get("MEMGATE_URL"):
        yield from examine(cluster, settings)
        return
    from memgate import Client

    with Client(num_tries=1) as client:
        yield from examine(cluster, settings, client)
