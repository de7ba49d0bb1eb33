"""``memgate doctor --kubernetes`` at a real API server: every mistake is named."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as kube

from memgate_service.admission.kubernetes.issuing import Issued, issue
from tests.chart import render
from tests.integration.kube_lab import Lab
from tests.parts import find_part
from tests.running import free_port

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(find_part("helm") is None, reason="helm is not here: make parts"),
]

_NAMESPACE = "memgate"
_MEMGATE = Path(sys.executable).parent / "memgate"

#: what the checks look at
_KINDS = {
    *("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"),
    *("Deployment", "Secret", "Service", "ServiceAccount"),
}


@pytest.fixture
def set_up(lab: Lab) -> Iterator[Any]:
    """The chart as installed, with what its jobs and pods would have added."""
    lab.make_namespace(_NAMESPACE)
    objects = render({"admission.gpus": ["t4"]}, "--skip-tests", "--kube-version=1.27")
    lab.apply(*(one for one in objects if one["kind"] in _KINDS))
    issued = issue(("memgate-webhook.memgate.svc",), now=datetime.now(UTC), life=timedelta(days=9))
    _trust(lab, issued)
    _fill(lab, "memgate-webhook-tls", {"tls.crt": issued.certificate, "tls.key": issued.key})
    _fill(lab, "memgate-controller-key", {"key": b"mg_key"})
    _make_ready(lab)
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-1", "labels": {"nvidia.com/gpu.product": "Tesla-T4"}},
    }
    lab.apply(node)
    yield objects
    lab.remove_webhooks()
    lab.kubectl("delete", "node", "node-1")
    names = "deployments,endpoints,services"
    lab.kubectl("delete", names, "--all", f"--namespace={_NAMESPACE}")


def _trust(lab: Lab, issued: Issued | None) -> None:
    bundle = base64.b64encode(issued.authority).decode() if issued is not None else None
    patch = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
    for kind in ("validatingwebhookconfiguration", "mutatingwebhookconfiguration"):
        lab.kubectl("patch", kind, "memgate", "--type=json", f"--patch={json.dumps(patch)}")


def _fill(lab: Lab, name: str, data: dict[str, bytes] | None) -> None:
    encoded = {key: base64.b64encode(text).decode() for key, text in (data or {}).items()}
    patch = json.dumps({"data": encoded or None})
    lab.kubectl("patch", "secret", name, f"--namespace={_NAMESPACE}", f"--patch={patch}")


def _make_ready(lab: Lab) -> None:
    """Do what the controllers of Services would: the webhooks' pods are ready."""
    core = kube.CoreV1Api(lab.client)
    body = {
        "metadata": {"name": "memgate-webhook"},
        "subsets": [{"addresses": [{"ip": "10.1.1.1"}], "ports": [{"port": 8443}]}],
    }
    core.create_namespaced_endpoints(_NAMESPACE, body)  # type: ignore[arg-type]


def _examine(lab: Lab, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {"MEMGATE_KUBECONFIG": str(lab.kubeconfig), "PATH": os.environ["PATH"]}
    return subprocess.run(
        [str(_MEMGATE), "doctor", "--kubernetes"],
        env=environment | settings,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_right_set_up_is_found_right(lab: Lab, set_up: Any) -> None:
    """Each check says what it was about."""
    ran = _examine(lab)
    assert (ran.returncode, "WRONG" in ran.stdout) == (0, False), ran.stdout + ran.stderr
    for about in ("certificate", "service", "timeouts", "the key of memgate-controller"):
        assert about in ran.stdout


def test_a_wrong_gpu_name_is_found(lab: Lab, set_up: Any) -> None:
    """As an administrator wrote it into the values; and a node's GPU that was left out."""
    (webhook,) = (
        one
        for one in set_up
        if one["kind"] == "Deployment" and one["metadata"]["name"] == "memgate-webhook"
    )
    env = webhook["spec"]["template"]["spec"]["containers"][0]["env"]
    (gpus,) = (one for one in env if one["name"] == "MEMGATE_ADMISSION_GPUS")
    gpus["value"] = "a100-8O"
    for one in set_up:  # of both programs, as helm would
        if one["kind"] == "Deployment" and one is not webhook:
            for container in one["spec"]["template"]["spec"]["containers"]:
                for variable in container["env"]:
                    if variable["name"] == "MEMGATE_ADMISSION_GPUS":
                        variable["value"] = "a100-8O"
    lab.apply(*(one for one in set_up if one["kind"] == "Deployment"))
    ran = _examine(lab)
    assert ran.returncode == 1
    assert "WRONG  admission.gpus: gpu is 'a100-8O': it is not in the catalogue" in ran.stdout
    assert "'a100-80'" in ran.stdout


def test_a_gpu_that_nobody_named_is_found(lab: Lab, set_up: Any) -> None:
    """A node has one that the settings lack, and one that nobody knows."""
    for product, want in (
        ("NVIDIA-A100-SXM4-80GB", "is not among the GPUs of the settings"),
        ("NVIDIA-Z9000", "is not in the catalogue"),
    ):
        label = f"nvidia.com/gpu.product={product}"
        lab.kubectl("label", "node", "node-1", label, "--overwrite")
        ran = _examine(lab)
        assert ran.returncode == 1
        assert f"WRONG  GPUs of the nodes: {product} {want}" in ran.stdout


def test_an_empty_key_is_found(lab: Lab, set_up: Any) -> None:
    """With it the controller is told nothing."""
    _fill(lab, "memgate-controller-key", {"key": b""})
    ran = _examine(lab)
    assert ran.returncode == 1
    assert "'key' in the Secret memgate/memgate-controller-key is empty" in ran.stdout


def test_an_unreachable_service_is_found(lab: Lab, set_up: Any) -> None:
    """No pod is ready; and an API that does not answer where it is said to be."""
    lab.kubectl("delete", "endpoints", "memgate-webhook", f"--namespace={_NAMESPACE}")
    ran = _examine(lab, MEMGATE_URL=f"http://127.0.0.1:{free_port()}")
    assert ran.returncode == 1
    assert 'endpoints "memgate-webhook" not found' in ran.stdout
    assert "WRONG  memgate answers, and takes the key: " in ran.stdout


def test_a_missing_certificate_is_found(lab: Lab, set_up: Any) -> None:
    """The Secret is empty, or holds another one, or the API server was never told."""
    _fill(lab, "memgate-webhook-tls", {"tls.crt": b"", "tls.key": b""})
    assert "the Secret memgate/memgate-webhook-tls has no tls.crt" in _examine(lab).stdout
    other = issue(("memgate-webhook.memgate.svc",), now=datetime.now(UTC), life=timedelta(days=9))
    _fill(lab, "memgate-webhook-tls", {"tls.crt": other.certificate, "tls.key": other.key})
    assert "caBundle does not vouch for the one in memgate/" in _examine(lab).stdout
    _trust(lab, None)
    ran = _examine(lab)
    assert ran.returncode == 1
    assert "the API server is not told whom to trust" in ran.stdout
