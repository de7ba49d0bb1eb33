"""``memgate controller``: releases what the webhooks of Kubernetes hold, or answers Kueue."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from memgate_service.admission.kubernetes.cluster import Cluster
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from memgate_service.cli.commands.options import ApiKey, Server
from memgate_worker.logs import set_up_logs


def controller_command(
    server: Server = None,
    api_key: ApiKey = None,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How often to look.")
    ] = 2.0,
    kueue: Annotated[
        bool, typer.Option("--kueue", help="Answer Kueue's admission checks instead.")
    ] = False,
) -> None:
    """Release Kubernetes objects that are held until memgate has an answer; runs until stopped.

    It finds Kubernetes as the pod that it runs in, or with MEMGATE_KUBECONFIG, and follows the same
    MEMGATE_ADMISSION_* settings as the webhooks. The Helm chart sets up what it needs there.
    """
    from memgate import Client
    from memgate_service.admission.kubernetes.controller import HoldController
    from memgate_service.admission.kueue.controller import KueueController

    settings = AdmissionSettings.from_environment()
    set_up_logs()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    cluster = Cluster.connect(settings.kubeconfig)
    with Client(server, api_key=api_key, num_tries=1) as memgate:
        make = KueueController if kueue else HoldController
        controller = make(cluster, memgate, settings)
        controller.run(interval, lambda seconds: not stopped.wait(seconds))
