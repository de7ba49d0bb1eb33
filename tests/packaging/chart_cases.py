"""Sets of values for the Helm chart, and how to find one's way in what it renders."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.chart import render

Values = dict[str, Any]

VALUE_SETS: dict[str, Values] = {
    "as it comes": {},
    "cert-manager": {"certificates.kind": "cert-manager"},
    "own issuer": {
        "certificates.kind": "cert-manager",
        "certificates.issuerRef": {"kind": "ClusterIssuer", "name": "corporate"},
    },
    "own certificate": {
        "certificates.kind": "existing",
        "certificates.existingSecret": "ours",
        "certificates.caBundle": "Q0E=",
    },
    "KEDA by the queue": {"workers.slow.autoscaling.kind": "keda"},
    "KEDA by Prometheus, HPA": {
        "workers.slow.autoscaling.kind": "keda",
        "workers.slow.autoscaling.source": "prometheus",
        "workers.fast.autoscaling.kind": "hpa",
    },
    "another Valkey": {
        "valkey.enabled": False,
        "valkey.external.url": "rediss://queue.example.com:6380/0",
        "valkey.external.port": 6380,
    },
    "another Valkey by Secret": {
        "valkey.enabled": False,
        "valkey.external.existingSecret": "queue",
    },
    "no webhooks": {"admission.validate": False, "admission.mutate": False},
    "little": {
        "api.replicas": 1,
        "admission.replicas": 1,
        "admission.configMaps": False,
        "admission.policyResources": False,
        "admission.events": False,
        "audit.enabled": False,
        "crds.install": False,
        "admission.matchConditions": False,
        "networkPolicy.enabled": False,
        "podDisruptionBudget.enabled": False,
    },
    "everything": {
        "fullnameOverride": "gate",
        "namespace.create": True,
        "image.registry": "registry.example.com/team/",
        "imagePullSecrets": [{"name": "login"}],
        "env": {"MEMGATE_MAX_JOBS": "50000"},
        "podLabels": {"team": "platform"},
        "podAnnotations": {"note": "ours"},
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "priorityClassName": "system-cluster-critical",
        "affinity": {"nodeAffinity": {}},
        "controller.affinity": {"podAffinity": {}},
        "rehearsals.enabled": True,
        "serviceAccount.annotations": {"owner": "platform"},
        "api.serviceAccount.annotations": {"role": "reader"},
        "image.digests": {"service": f"sha256:{'a' * 64}", "worker": f"sha256:{'b' * 64}"},
        "api.ingress.enabled": True,
        "api.ingress.className": "nginx",
        "api.ingress.annotations": {"a": "b"},
        "api.ingress.tlsSecret": "tls",
        "admission.onTimeout": "hold",
        "admission.onUncertain": "reject",
        "admission.failurePolicy": "Fail",
        "admission.rightSize": ["hami", "node-selector"],
        "admission.paths": {"Experiment.example.com": {"templates": ["/spec/template"]}},
        "admission.gpus": ["rtx-3060", "a100-80"],
        "admission.releasers": ["system:masters", "gpu-admins"],
        "admission.namespaceExpressions": [{"key": "team", "operator": "Exists"}],
        "admission.objectSelector": {"matchLabels": {"gpu": "yes"}},
        "admission.extraEnv": [{"name": "MEMGATE_MAX_WAITING", "value": "64"}],
        "workers.slow.autoscaling.kind": "keda",
        "workers.fast.autoscaling.kind": "keda",
        "valkey.storageClass": "fast",
        "networkPolicy.apiServerCidrs": ["10.0.0.0/28", "fd00::/64"],
        "monitoring.serviceMonitor": True,
        "monitoring.rules": True,
        "monitoring.labels": {"release": "prometheus"},
    },
}

#: kinds of others: no schema of theirs is here, tests below look at them
CUSTOM = {
    *("Certificate", "Issuer", "ScaledObject", "TriggerAuthentication"),
    *("ServiceMonitor", "PrometheusRule"),
    "CustomResourceDefinition",
}

#: programs that talk to Kubernetes; all others have no token
TALKS_TO_KUBERNETES = {"webhook", "certificates", "controller", "keys"}

HOLDING: Values = {"admission.onTimeout": "hold"}


@cache
def render_set(name: str, *arguments: str) -> list[Any]:
    """Render the chart with a set of values, once."""
    return render(VALUE_SETS[name], *arguments)


def by_kind(objects: list[Any], kind: str) -> dict[str, Any]:
    """Return the objects of a kind, by name."""
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == kind}


def find_pods(objects: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield every pod or pod template, with the name of its program."""
    for found in objects:
        spec = found.get("spec", {})
        if found["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        pod = found if found["kind"] == "Pod" else spec.get("template")
        if pod and "containers" in pod.get("spec", {}):
            yield pod["metadata"]["labels"]["app.kubernetes.io/component"], pod


def find_container(objects: list[Any], component: str) -> Any:
    """Return the one container of a program's pods."""
    (container,) = next(pod for name, pod in find_pods(objects) if name == component)["spec"][
        "containers"
    ]
    return container


def read_env(container: Any) -> dict[str, Any]:
    """Return a container's variables, in order."""
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def matches(selector: Any, labels: dict[str, str]) -> bool:
    """Tell whether a selector takes these labels."""
    wanted = selector.get("matchLabels", {}).items()
    inside = all(
        labels.get(rule["key"]) in rule["values"] for rule in selector.get("matchExpressions", ())
    )
    return wanted <= labels.items() and inside
