"""The webhooks and the controller as programs, in front of a real API server."""

from __future__ import annotations

import copy
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from memgate.audit import AuditEntry
from memgate_worker.queue.client import QueueClient
from memgate_worker.queue.settings import QueueSettings
from tests.admission import JOB, SPEC
from tests.integration.kube_lab import Lab
from tests.record_reviews import RULES, read_example
from tests.running import serving, wait_until

_VERBS = ("mutate", "validate")

#: where tests create their objects
NAMESPACE = "gated"

#: a job that fits on no card of this size
LARGE = {
    "model": {"source": "torchvision", "name": "resnet50"},
    "input": {"shape": [3, 224, 224]},
    "batch_size": 512,
}


class Webhooks:
    """A service for webhooks, over TLS."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, context: ssl.SSLContext) -> None:
        self.process = process
        self.url = url
        self._context = context

    def metrics(self) -> str:
        """Return what Prometheus would see; nothing if it does not answer."""
        try:
            with urlopen(f"{self.url}/metrics", context=self._context, timeout=2) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""


@contextmanager
def gating(
    lab: Lab,
    valkey: str,
    directory: Path,
    *,
    policy: str = "Fail",
    timeout: int = 20,
    **settings: str,
) -> Iterator[Webhooks]:
    """Run the webhooks, and have the API server ask them."""
    with serving_webhooks(lab, valkey, directory, **settings) as webhooks:
        for kind in ("Mutating", "Validating"):
            lab.install_webhook(
                webhooks.url,
                lab.certificate.authority,
                kind=kind,
                failure_policy=policy,
                timeout=timeout,
                rules=RULES,
            )
        wait_until_asked(lab, webhooks)
        yield webhooks


def forget_webhooks(lab: Lab) -> None:
    """Have the API server ask nobody any more."""
    lab.remove_webhooks()
    # which it refused, or could not ask about, as long as it knew of a webhook
    anything = make_job("nonsense", spec={"nonsense": True})
    wait_until(
        lambda: create(lab, anything, "--dry-run=server").returncode == 0,
        "the API server asks nobody any more",
    )


@contextmanager
def serving_webhooks(lab: Lab, valkey: str, directory: Path, **settings: str) -> Iterator[Webhooks]:
    """Run the webhooks, over TLS."""
    settings = {
        "redis_url": valkey,
        "serve": "webhooks",
        "tls_certificate": str(lab.tls_certificate),
        "tls_key": str(lab.tls_key),
    } | settings
    context = ssl.create_default_context(cadata=lab.certificate.authority.decode())
    log = directory / "service.log"
    with serving(log, grace_seconds=30, **settings) as served:
        webhooks = Webhooks(served.process, served.url, context)
        wait_until(lambda: "memgate_build" in webhooks.metrics(), "the webhooks answer")
        yield webhooks


def wait_until_asked(lab: Lab, webhooks: Webhooks) -> None:
    """Wait until the API server has heard of both webhooks."""
    bad = make_job("nonsense", spec={"nonsense": True})

    def is_asked() -> bool:
        create(lab, bad, "--dry-run=server")
        metrics = webhooks.metrics()
        return all(f'route="/webhooks/kubernetes/{verb}"' in metrics for verb in _VERBS)

    wait_until(is_asked, "the API server asks its webhooks")


def make_job(name: str, *, spec: dict[str, Any] = SPEC, gpu: str = "Tesla-T4") -> dict[str, Any]:
    """Make the example's Job with another spec."""
    document = copy.deepcopy(read_example("job.yaml")[0])
    document["metadata"] |= {"name": name, "annotations": {JOB: json.dumps(spec)}}
    selector = {"nvidia.com/gpu.product": gpu}
    document["spec"]["template"]["spec"]["nodeSelector"] = selector
    assert isinstance(document, dict)
    return document


def create(lab: Lab, document: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
    """Create an object in the gated namespace, as a person does."""
    command = ("create", "--filename=-", f"--namespace={NAMESPACE}", "--validate=false", *more)
    return lab.kubectl(*command, given=[document], check=False)


def read_audit(valkey: str, namespace: str = NAMESPACE, **filters: Any) -> list[AuditEntry]:
    """Return what the audit has about a namespace."""
    queue = QueueClient(QueueSettings(redis_url=valkey))
    try:
        return list(queue.audit.walk(namespace=namespace, **filters))
    finally:
        queue.close()


def find_events(lab: Lab, name: str, namespace: str = NAMESPACE) -> dict[str, Any]:
    """Return the events about an object, by their reason."""
    found = lab.kubectl("get", "events", f"--namespace={namespace}", "--output=json").stdout
    about = [one for one in json.loads(found)["items"] if one["involvedObject"]["name"] == name]
    return {one["reason"]: one for one in about}


@contextmanager
def controlling(
    lab: Lab, valkey: str, directory: Path, *arguments: str, **settings: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run the API and ``memgate controller``, one for each of ``arguments`` (or one)."""
    memgate = Path(sys.executable).parent / "memgate"
    environment = {"MEMGATE_KUBECONFIG": str(lab.kubeconfig)}
    environment |= {f"MEMGATE_{name.upper()}": value for name, value in settings.items()}
    with ExitStack() as stack:
        served = stack.enter_context(serving(directory / "api.log", redis_url=valkey))
        environment["MEMGATE_URL"] = served.url
        processes = []
        for number, words in enumerate(arguments or ("",)):
            log = stack.enter_context((directory / f"controller-{number}.log").open("wb"))
            command = [str(memgate), "controller", "--interval", "0.5", *words.split()]
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        try:
            yield processes
        finally:
            for process in processes:
                process.terminate()
            assert {process.wait(30) for process in processes} <= {0, -9}


def let_edit(lab: Lab, name: str) -> None:
    """Make a service account that may edit everything in the namespace, as an owner may."""
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    metadata = {"name": name, "namespace": "gated"}
    group = "rbac.authorization.k8s.io"
    lab.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "gated"}],
        },
    )
