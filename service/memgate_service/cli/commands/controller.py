"""``memgate controller``: releases what the webhooks of Kubernetes hold, or answers Kueue."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from memgate_service.admission.kubernetes.cluster import Cluster
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from memgate_service.cli.commands.options import ApiKey, Server
from memgate_worker.logs import set_up_logs, write_line

if TYPE_CHECKING:
    from memgate import Client
    from memgate_service.admission.kubernetes.rounds import Rounds


def controller_command(
    server: Server = None,
    api_key: ApiKey = None,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How often to look.")
    ] = 2.0,
    kueue: Annotated[
        bool, typer.Option("--kueue", help="Answer Kueue's admission checks instead.")
    ] = False,
    lease: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE/NAME", help="Of several, only the holder of this Lease works."
        ),
    ] = None,
) -> None:
    """Release Kubernetes objects that are held until memgate has an answer; runs until stopped.

    It finds Kubernetes as the pod that it runs in, or with MEMGATE_KUBECONFIG, and follows the same
    MEMGATE_ADMISSION_* settings as the webhooks. The Helm chart sets up what it needs there.
    """
    from memgate import Client
    from memgate_service.admission.kubernetes.rounds import run_rounds

    settings = AdmissionSettings.from_environment()
    set_up_logs()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    cluster = Cluster.connect(settings.kubeconfig)
    with Client(server, api_key=api_key, num_tries=1) as memgate, ExitStack() as stack:
        is_leader = stack.enter_context(_leading(cluster, lease, stopped))
        run_rounds(
            _make_rounds(cluster, memgate, settings, is_kueue=kueue),
            interval,
            lambda seconds: not stopped.wait(seconds),
            is_leader,
        )


def _make_rounds(
    cluster: Cluster, memgate: Client, settings: AdmissionSettings, *, is_kueue: bool
) -> list[Rounds]:
    from memgate_service.admission.kubernetes.background import BackgroundAudit
    from memgate_service.admission.kubernetes.controller import HoldController
    from memgate_service.admission.kubernetes.finished import FinishedJobs
    from memgate_service.admission.kubernetes.late import LateController
    from memgate_service.admission.kubernetes.policy_resources import open_policies
    from memgate_service.admission.kubernetes.policy_status import PolicyStatuses
    from memgate_service.admission.kubernetes.rehearsing import RehearsalController
    from memgate_service.admission.kueue.controller import KueueController

    log = partial(_log_problem, "policy")
    policies = open_policies(settings, lambda: cluster, log)
    if is_kueue:
        return [KueueController(cluster, memgate, settings, policies)]
    # where rehearsals were turned off, what still waits for one is released
    made: list[type[Rounds]] = [
        *(PolicyStatuses, HoldController, LateController, RehearsalController)
    ]
    if settings.admission_audit_seconds:
        made += [BackgroundAudit, FinishedJobs]
    return [one(cluster, memgate, settings, policies) for one in made]


def _log_problem(event: str, problem: str) -> None:
    write_line(event, {"error": problem})


@contextmanager
def _leading(
    cluster: Cluster, lease: str | None, stopped: threading.Event
) -> Iterator[Callable[[], bool]]:
    """Compete for the Lease, if there is one; yields whether this program leads now."""
    from memgate_service.admission.kubernetes.leader import Leader

    if lease is None:
        yield lambda: True
        return
    namespace, _, name = lease.partition("/")
    if not namespace or not name:
        raise typer.BadParameter(f"{lease!r} is not NAMESPACE/NAME", param_hint="--lease")
    leader = Leader(cluster, namespace, name, f"{socket.gethostname()}-{uuid4().hex[:8]}")
    thread = threading.Thread(target=leader.keep_holding, args=(stopped,), daemon=True)
    thread.start()
    try:
        yield leader.is_leader
    finally:
        stopped.set()
        thread.join()
