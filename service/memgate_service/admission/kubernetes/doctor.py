"""Checks of a Kubernetes set-up: webhooks, certificate, service, key, GPUs, policy.

Changes nothing.

What the pods are set to is read from their Deployments: the settings of whoever asks are those of
another machine.
"""

from __future__ import annotations

import base64
import binascii
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from memgate.client.clients import Client
from memgate.errors import InputError
from memgate.gpus import GpuSpec, find_products
from memgate_service.admission.core.doctor import Check, check_policy, check_server, try_out
from memgate_service.admission.core.rules import parse_policy
from memgate_service.admission.kubernetes.cluster import Cluster, ClusterError, Resource
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_list, as_object
from memgate_service.admission.kubernetes.objects import PRODUCT_LABEL
from memgate_service.admission.kubernetes.policy_resources import RESOURCES
from memgate_service.admission.kubernetes.settings import (
    AdmissionSettings,
    find_named_gpu,
    split,
)

_API = "admissionregistration.k8s.io/v1"
_KINDS = {
    "validate.memgate.dev": Resource(_API, "validatingwebhookconfigurations"),
    "mutate.memgate.dev": Resource(_API, "mutatingwebhookconfigurations"),
}
_DEPLOYMENTS = Resource("apps/v1", "deployments")
_SECRETS = Resource("v1", "secrets")

#: a person waits for both
_MAX_SECONDS = 5

#: for a webhook outside of the cluster
_CONNECT_SECONDS = 5.0


class _SetUp(NamedTuple):
    """A program of ours in the cluster, and how it is set."""

    name: str
    namespace: str
    env: Mapping[str, JsonObject]
    pod: JsonObject


def examine(
    cluster: Cluster, settings: AdmissionSettings, client: Client | None = None
) -> Iterator[Check]:
    """Yield what was checked; ``client`` asks the API, if it is known where that is."""
    found: dict[str, JsonObject] = {}
    for name, resource in _KINDS.items():
        yield try_out(name, partial(_find, cluster, resource, name, found))
    programs = _find_programs(cluster, found)
    for name, webhook in found.items():
        check = partial(_check_trust, cluster, webhook, programs)
        yield try_out(f"{name}: certificate", check, "the page on Kubernetes says how it is made")
        yield try_out(f"{name}: service", partial(_check_service, cluster, webhook))
    yield Check(about="timeouts", wrong=_check_timeouts(found))
    if any(one.get("matchConditions") for one in found.values()):
        check = partial(_check_undescribed, cluster)
        yield try_out(
            "what the API server asks about", check, "set admission.matchConditions: false"
        )
    if settings.admission_policy is not None:
        path = settings.admission_policy
        yield check_policy(lambda: parse_policy(path.read_bytes()))
    for program in programs:
        if "MEMGATE_API_KEY" in program.env:
            about = f"the key of {program.name}"
            yield try_out(about, partial(_check_key, cluster, program), "memgate keys create")
    names = _find_gpus(programs) or split(settings.admission_gpus)
    yield try_out("admission.gpus", lambda: _check_gpus(names), "see: memgate gpus")
    yield try_out("GPUs of the nodes", lambda: _check_nodes(cluster, names), "set admission.gpus")
    if client is not None:
        yield check_server(client)[0]


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


def _service(webhook: JsonObject) -> JsonObject:
    return as_object(as_object(webhook.get("clientConfig")).get("service"))


def _find_programs(cluster: Cluster, found: Mapping[str, JsonObject]) -> list[_SetUp]:
    """Return our programs where the webhooks are; none if they are not in the cluster."""
    namespaces = {str(_service(one).get("namespace", "")) for one in found.values()} - {""}
    made = []
    for namespace in sorted(namespaces):
        try:
            deployments = cluster.list(_DEPLOYMENTS, namespace=namespace)
        except ClusterError:  # those who may not look at them are told what they may look at
            continue
        made += [one for document in deployments if (one := _read_program(document)).env]
    return made


def _read_program(document: JsonObject) -> _SetUp:
    metadata = as_object(document.get("metadata"))
    template = as_object(as_object(document.get("spec")).get("template"))
    pod = as_object(template.get("spec"))
    env = {
        str(variable.get("name")): variable
        for container in map(as_object, as_list(pod.get("containers")))
        for variable in map(as_object, as_list(container.get("env")))
        if str(variable.get("name")).startswith("MEMGATE_")
    }
    return _SetUp(str(metadata.get("name")), str(metadata.get("namespace")), env, pod)


def _check_trust(cluster: Cluster, webhook: JsonObject, programs: Sequence[_SetUp]) -> str:
    given = as_object(webhook.get("clientConfig")).get("caBundle")
    if not given:
        return "the API server is not told whom to trust (caBundle is empty)"
    try:
        trusted = x509.load_pem_x509_certificates(base64.b64decode(str(given)))
    except (ValueError, binascii.Error):
        return "caBundle is not a certificate"
    ends = max(one.not_valid_after_utc for one in trusted)
    if ends < datetime.now(UTC):
        return f"it ended on {ends:%Y-%m-%d}"
    for program in programs:
        if "MEMGATE_TLS_CERTIFICATE" in program.env:
            return _check_served(cluster, program, trusted)
    return ""


def _check_served(cluster: Cluster, program: _SetUp, trusted: Sequence[x509.Certificate]) -> str:
    """Check the certificate that the webhooks present."""
    volumes = map(as_object, as_list(program.pod.get("volumes")))
    names = [as_object(one.get("secret")).get("secretName") for one in volumes]
    for name in filter(None, names):
        text = _read_secret(cluster, program.namespace, str(name), "tls.crt")
        if not text:
            return f"the Secret {program.namespace}/{name} has no tls.crt"
        try:
            served = x509.load_pem_x509_certificate(text)
        except ValueError:
            return f"tls.crt in the Secret {program.namespace}/{name} is not a certificate"
        if served.not_valid_after_utc < datetime.now(UTC):
            return f"the one in {program.namespace}/{name} ended"
        if not any(_is_signed_by(served, one) for one in trusted):
            return f"caBundle does not vouch for the one in {program.namespace}/{name}"
    return ""


def _is_signed_by(served: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        served.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return served == issuer
    return True


def _read_secret(cluster: Cluster, namespace: str, name: str, key: str) -> bytes:
    """Return what is in a Secret; nothing if it lacks that.

    Raises:
        ValueError: if there is no such Secret, or it may not be read.
    """
    try:
        data = as_object(cluster.read(_SECRETS, name, namespace).get("data"))
    except ClusterError as error:
        raise ValueError(error.message) from None
    return base64.b64decode(str(data.get(key) or ""))


def _check_key(cluster: Cluster, program: _SetUp) -> str:
    variable = program.env["MEMGATE_API_KEY"]
    named = as_object(as_object(variable.get("valueFrom")).get("secretKeyRef"))
    if not named:
        return "" if variable.get("value") else "MEMGATE_API_KEY is empty"
    name, key = str(named.get("name")), str(named.get("key"))
    text = _read_secret(cluster, program.namespace, name, key)
    return "" if text.strip() else f"{key!r} in the Secret {program.namespace}/{name} is empty"


def _check_service(cluster: Cluster, webhook: JsonObject) -> str:
    config = as_object(webhook.get("clientConfig"))
    if config.get("url"):
        return _check_url(str(config["url"]), str(config.get("caBundle") or ""))
    service = _service(webhook)
    name, namespace = str(service.get("name", "")), str(service.get("namespace", ""))
    try:
        points = cluster.read(Resource("v1", "endpoints"), name, namespace)
    except ClusterError as error:
        return error.message
    ready = [one for one in as_list(points.get("subsets")) if as_object(one).get("addresses")]
    return "" if ready else f"no pod of {namespace}/{name} is ready"


def _check_url(url: str, bundle: str) -> str:
    """Connect as the API server does."""
    where = urlsplit(url)
    host, port = where.hostname or "", where.port or 443
    try:
        context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
        with (
            socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return ""
    except ssl.SSLCertVerificationError as error:
        return f"{host}:{port} is not trusted: {error.verify_message}"
    except (OSError, ValueError) as error:
        return f"{host}:{port} cannot be reached: {error}"


def _check_timeouts(found: dict[str, JsonObject]) -> str:
    seconds = {name: _seconds(webhook) for name, webhook in found.items()}
    most = seconds.get("validate.memgate.dev", 0) + 2 * seconds.get("mutate.memgate.dev", 0)
    return f"people may wait {most} s for both webhooks" if most >= _MAX_SECONDS else ""


def _seconds(webhook: JsonObject) -> int:
    given: Any = webhook.get("timeoutSeconds", 10)
    return int(given)


def _check_undescribed(cluster: Cluster) -> str:
    """Find policies about what the API server does not ask about."""
    names = []
    for kind, resource in RESOURCES.items():
        try:
            found = cluster.list(resource)
        except ClusterError:  # the kind is not installed, or may not be listed
            continue
        for document in found:
            spec = as_object(document.get("spec"))
            said = [spec, *map(as_object, as_list(spec.get("rules")))]
            actions = {as_object(one.get("on")).get("undescribed", "admit") for one in said}
            if actions != {"admit"}:
                name = as_object(document.get("metadata")).get("name")
                names.append(f"{kind.partition('.')[0]}/{name}")
    if not names:
        return ""
    return f"not about what is undescribed, of which {', '.join(names)} says more than admit"


def _find_gpus(programs: Sequence[_SetUp]) -> tuple[str, ...]:
    for program in programs:
        given = as_object(program.env.get("MEMGATE_ADMISSION_GPUS")).get("value")
        if given:
            return split(str(given))
    return ()


def _check_gpus(names: Sequence[str]) -> str:
    wrong = []
    for name in names:
        try:
            find_named_gpu(name)
        except InputError as error:
            wrong.append(error.message)
    return "; ".join(wrong)


def _check_nodes(cluster: Cluster, names: Sequence[str]) -> str:
    nodes = _list(cluster, Resource("v1", "nodes"))
    labels = [as_object(as_object(one.get("metadata")).get("labels")) for one in nodes]
    products = sorted({str(one[PRODUCT_LABEL]) for one in labels if PRODUCT_LABEL in one})
    unknown = [name for name in products if not find_products(name)]
    if unknown:
        return f"{', '.join(unknown)} is not in the catalogue: see MEMGATE_GPUS"
    known = {gpu for name in names for gpu in _find_quietly(name)}
    missing = [name for name in products if known and known.isdisjoint(find_products(name))]
    return f"{', '.join(missing)} is not among the GPUs of the settings" if missing else ""


def _find_quietly(name: str) -> tuple[GpuSpec, ...]:
    try:
        return (find_named_gpu(name),)
    except InputError:  # it is told by another check
        return ()
