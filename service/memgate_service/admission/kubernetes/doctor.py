"""Checks of a Kubernetes set-up: webhooks, certificate, service, GPUs, policy. Changes nothing."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from cryptography import x509

from memgate_service.admission.core.doctor import Check, check_policy, try_out
from memgate_service.admission.core.rules import parse_policy
from memgate_service.admission.kubernetes.cluster import Cluster, ClusterError, Resource
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_list, as_object
from memgate_service.admission.kubernetes.objects import PRODUCT_LABEL
from memgate_service.admission.kubernetes.settings import AdmissionSettings

_API = "admissionregistration.k8s.io/v1"
_KINDS = {
    "validate.memgate.dev": Resource(_API, "validatingwebhookconfigurations"),
    "mutate.memgate.dev": Resource(_API, "mutatingwebhookconfigurations"),
}
#: a person waits for both
_MAX_SECONDS = 5


def examine(cluster: Cluster, settings: AdmissionSettings) -> Iterator[Check]:
    """Yield what was checked."""
    found: dict[str, JsonObject] = {}
    for name, resource in _KINDS.items():
        yield try_out(name, partial(_find, cluster, resource, name, found))
    for name, webhook in found.items():
        yield try_out(f"{name}: certificate", partial(_check_trust, webhook), "certificates")
        yield try_out(f"{name}: service", partial(_check_service, cluster, webhook))
    yield Check(about="timeouts", wrong=_check_timeouts(found))
    if settings.admission_policy is not None:
        path = settings.admission_policy
        yield check_policy(lambda: parse_policy(path.read_bytes()))
    yield try_out("GPUs of the nodes", lambda: _check_nodes(cluster, settings), "admission.gpus")


def _find(cluster: Cluster, resource: Resource, name: str, found: dict[str, JsonObject]) -> str:
    for configuration in _list(cluster, resource):
        for webhook in map(as_object, as_list(configuration.get("webhooks"))):
            if webhook.get("name") == name:
                found[name] = webhook
                return ""
    return "there is no such webhook: nothing asks memgate"


def _list(cluster: Cluster, resource: Resource) -> list[JsonObject]:
    try:
        return cluster.list(resource)
    except ClusterError as error:
        raise ValueError(error.message) from None


def _check_trust(webhook: JsonObject) -> str:
    given = as_object(webhook.get("clientConfig")).get("caBundle")
    if not given:
        return "the API server is not told whom to trust (caBundle is empty)"
    try:
        trusted = x509.load_pem_x509_certificates(base64.b64decode(str(given)))
    except (ValueError, binascii.Error):
        return "caBundle is not a certificate"
    ends = max(one.not_valid_after_utc for one in trusted)
    return f"it ended on {ends:%Y-%m-%d}" if ends < datetime.now(UTC) else ""


def _check_service(cluster: Cluster, webhook: JsonObject) -> str:
    service = as_object(as_object(webhook.get("clientConfig")).get("service"))
    name, namespace = str(service.get("name", "")), str(service.get("namespace", ""))
    try:
        points = cluster.read(Resource("v1", "endpoints"), name, namespace)
    except ClusterError as error:
        return error.message
    ready = [one for one in as_list(points.get("subsets")) if as_object(one).get("addresses")]
    return "" if ready else f"no pod of {namespace}/{name} is ready"


def _check_timeouts(found: dict[str, JsonObject]) -> str:
    seconds = {name: _seconds(webhook) for name, webhook in found.items()}
    most = seconds.get("validate.memgate.dev", 0) + 2 * seconds.get("mutate.memgate.dev", 0)
    return f"people may wait {most} s for both webhooks" if most >= _MAX_SECONDS else ""


def _seconds(webhook: JsonObject) -> int:
    given: Any = webhook.get("timeoutSeconds", 10)
    return int(given)


def _check_nodes(cluster: Cluster, settings: AdmissionSettings) -> str:
    nodes = _list(cluster, Resource("v1", "nodes"))
    labels = [as_object(as_object(one.get("metadata")).get("labels")) for one in nodes]
    products = sorted({str(one[PRODUCT_LABEL]) for one in labels if PRODUCT_LABEL in one})
    known = {settings.product_label(gpu) for gpu in settings.gpus}
    missing = [name for name in products if known and name not in known]
    return f"{', '.join(missing)} is not among the GPUs of the settings" if missing else ""
