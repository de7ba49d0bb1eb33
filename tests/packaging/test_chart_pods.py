"""The chart's pods, network, queue and scaling, rendered by a real helm."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from rq import Queue

from memgate.units import GIB
from memgate_worker.queue.queues import Speed, queue_names
from tests.chart import ALARMS, ALARMS_IN_CHART, ROOT, render
from tests.packaging.chart_cases import (
    HOLDING,
    TALKS_TO_KUBERNETES,
    VALUE_SETS,
    by_kind,
    find_container,
    find_pods,
    matches,
    read_env,
    render_set,
)
from tests.parts import find_part

pytestmark = pytest.mark.skipif(find_part("helm") is None, reason="helm is not here: make parts")


@pytest.mark.parametrize("name", VALUE_SETS)
def test_pods_run_under_the_strictest_rules(name: str) -> None:
    """Pod Security `restricted`, and beyond: nothing can be written but what is named."""
    pods = list(find_pods(render_set(name)))
    assert len(pods) >= 4
    for component, pod in pods:
        spec = pod["spec"]
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] >= 999
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, component
            resources = container["resources"]
            assert {"memory"} <= set(resources["limits"]), component
            assert {"cpu", "memory"} <= set(resources["requests"]), component


@pytest.mark.parametrize("name", VALUE_SETS)
def test_only_who_talks_to_kubernetes_has_a_token(name: str) -> None:
    """One that expires; and each program has an account of its own."""
    for component, pod in find_pods(render_set(name)):
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        may = component in TALKS_TO_KUBERNETES - ({"webhook"} if name == "little" else set())
        assert ("token" in volumes) == may, component
        mounts = {m["name"] for m in pod["spec"]["containers"][0].get("volumeMounts", ())}
        assert mounts - {"data"} == set(volumes), component
        if component not in {"worker-slow", "worker-fast", "test"}:
            assert pod["spec"]["serviceAccountName"].endswith(f"-{component}")


@pytest.mark.parametrize("name", VALUE_SETS)
def test_accounts_secrets_and_services_that_are_named_are_there(name: str) -> None:
    """Whatever a pod refers to is rendered as well, or is the operator's."""
    objects = render_set(name)
    accounts = set(by_kind(objects, "ServiceAccount"))
    secrets = set(by_kind(objects, "Secret")) | {"ours", "queue"}
    secrets |= {found["spec"]["secretName"] for found in by_kind(objects, "Certificate").values()}
    labels = [pod["metadata"]["labels"] for _, pod in find_pods(objects)]

    assert accounts == {pod["spec"]["serviceAccountName"] for _, pod in find_pods(objects)}
    used = set(re.findall(r"secretKeyRef: {key: \w+, name: ([\w-]+)}", _flow(objects)))
    used |= set(re.findall(r"secretName: ([\w-]+)", _flow(list(find_pods(objects)))))
    assert used
    assert used <= secrets
    for service in by_kind(objects, "Service").values():
        selector = {"matchLabels": service["spec"]["selector"]}
        assert any(matches(selector, found) for found in labels)


def _flow(objects: Any) -> str:
    return yaml.safe_dump(objects, default_flow_style=True, width=100000)


@pytest.mark.parametrize("name", [name for name in VALUE_SETS if name != "little"])
def test_the_network_lets_through_what_is_needed(name: str) -> None:
    """Everything is closed; every program may talk to what it needs, and policies hit somebody."""
    objects = render_set(name)
    policies = by_kind(objects, "NetworkPolicy").values()
    pods = [(component, pod["metadata"]["labels"]) for component, pod in find_pods(objects)]
    (closed,) = (p for p in policies if not {"ingress", "egress"} & set(p["spec"]))
    assert closed["spec"]["policyTypes"] == ["Ingress", "Egress"]
    for component, labels in pods:
        assert matches(closed["spec"]["podSelector"], labels)
        (ports,) = (
            (
                [rule["ports"] for rule in p["spec"]["egress"]]
                for p in policies
                if "egress" in p["spec"] and matches(p["spec"]["podSelector"], labels)
            )
            if component != "valkey"
            else ([],)
        )
        numbers = {port["port"] for group in ports for port in group}
        needs_queue = {"api", "worker-slow", "worker-fast", "webhook", "keys"}
        queue = 6380 if name == "another Valkey" else 6379
        assert (queue in numbers) == (component in needs_queue), component
        talks = component in TALKS_TO_KUBERNETES
        assert ({443, 6443} <= numbers) == talks, component
    for policy in policies:
        assert any(matches(policy["spec"]["podSelector"], labels) for _, labels in pods)


def test_only_our_programs_reach_the_queue() -> None:
    """Who can write to it can have workers run jobs."""
    policy = by_kind(render_set("as it comes"), "NetworkPolicy")["memgate-valkey-in"]
    (rule,) = policy["spec"]["ingress"]

    (peer,) = rule["from"]
    assert set(peer) == {"podSelector"}
    (who,) = peer["podSelector"]["matchExpressions"]
    assert who["values"] == ["api", "webhook", "worker-slow", "worker-fast", "keys"]


def test_keda_reads_the_lists_that_rq_makes() -> None:
    """One for each priority, by the password of the chart's own Valkey."""
    objects = render_set("KEDA by the queue")
    scaled = by_kind(objects, "ScaledObject")["memgate-worker-slow"]["spec"]

    assert scaled["scaleTargetRef"] == {"name": "memgate-worker-slow"}
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (1, 8)
    names = [trigger["metadata"]["listName"] for trigger in scaled["triggers"]]
    assert names == [
        f"{Queue.redis_queue_namespace_prefix}{name}" for name in queue_names([Speed.SLOW])
    ]
    for trigger in scaled["triggers"]:
        assert trigger["type"] == "redis"
        assert trigger["metadata"]["address"] == "memgate-valkey.memgate.svc:6379"
        assert trigger["metadata"]["listLength"] == "10"
        assert trigger["authenticationRef"] == {"name": "memgate-valkey"}
    authentication = by_kind(objects, "TriggerAuthentication")["memgate-valkey"]["spec"]
    assert authentication == {
        "secretTargetRef": [{"parameter": "password", "name": "memgate-valkey", "key": "password"}]
    }
    assert "replicas" not in by_kind(objects, "Deployment")["memgate-worker-slow"]["spec"]


def test_keda_asks_prometheus_for_the_metric_that_we_have() -> None:
    """By the names of the queues, once whatever the number of services."""
    objects = render_set("KEDA by Prometheus, HPA")
    (trigger,) = by_kind(objects, "ScaledObject")["memgate-worker-slow"]["spec"]["triggers"]

    query = trigger["metadata"]["query"]
    assert query == 'sum(max by (queue) (memgate_queue_depth{queue=~"memgate-slow-.+"}))'
    assert "`memgate_queue_depth{queue}`" in (ROOT / "docs" / "operations.md").read_text()
    assert not by_kind(objects, "TriggerAuthentication")
    scaler = by_kind(objects, "HorizontalPodAutoscaler")["memgate-worker-fast"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == "memgate-worker-fast"


def test_prometheus_is_told_whom_to_look_at_and_when_to_ring() -> None:
    """With the job that the alarms name, and the very alarms."""
    objects = render_set("everything")
    monitors = by_kind(objects, "ServiceMonitor")
    services = by_kind(objects, "Service")

    assert set(monitors) == {"gate-api", "gate-webhook"}
    for name, monitor in monitors.items():
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert monitor["spec"]["jobLabel"] == "app.kubernetes.io/name"
        service = services[name]
        assert service["metadata"]["labels"]["app.kubernetes.io/name"] == "memgate"
        assert matches(monitor["spec"]["selector"], service["metadata"]["labels"])
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    rules = by_kind(objects, "PrometheusRule")["gate"]["spec"]
    assert rules == yaml.safe_load(ALARMS.read_text())
    assert ALARMS_IN_CHART.read_bytes() == ALARMS.read_bytes()


def test_the_queue_is_kept_as_docker_compose_keeps_it() -> None:
    """Same image, same options: what was accepted survives a crash; and it is on a volume."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    objects = render_set("as it comes")
    container = find_container(objects, "valkey")
    given = [re.sub(r"\$[({].*[)}]", "PASSWORD", word) for word in container["args"]]
    wanted = [re.sub(r"\$[({].*[)}]", "PASSWORD", word) for word in compose["valkey"]["command"]]

    assert compose["valkey"]["image"].endswith(f":-{container['image']}}}")
    assert [*container["command"], *given] == [wanted[0], "--dir", "/data", *wanted[1:]]
    (claim,) = by_kind(objects, "StatefulSet")["memgate-valkey"]["spec"]["volumeClaimTemplates"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == "/data"


def test_callers_of_the_api_need_a_key() -> None:
    """As with docker compose, whoever opens the port up does not open the service."""
    assert (
        read_env(find_container(render_set("as it comes"), "api"))["MEMGATE_API_KEYS"] == "required"
    )


def test_a_password_is_made_up_and_never_known_to_the_chart() -> None:
    """A long one, another each time; with a Secret of yours, none."""
    first, second = (
        by_kind(render(), "Secret")["memgate-valkey"]["data"]["password"] for _ in range(2)
    )

    assert first != second
    assert len(first) >= 40
    named = render({"valkey.existingSecret": "mine"})
    assert "memgate-valkey" not in by_kind(named, "Secret")
    assert (
        read_env(find_container(named, "api"))["VALKEY_PASSWORD"]["secretKeyRef"]["name"] == "mine"
    )


def test_the_password_comes_before_the_url_that_is_made_from_it() -> None:
    """Kubernetes puts only earlier variables into later ones."""
    for component in ("api", "webhook", "worker-slow", "worker-fast"):
        names = list(read_env(find_container(render_set("as it comes"), component)))
        assert names.index("VALKEY_PASSWORD") < names.index("MEMGATE_REDIS_URL")


def test_another_valkey_is_used_as_it_is_given() -> None:
    """By its URL, or out of a Secret; and none is run."""
    for name, want in (
        ("another Valkey", "rediss://queue.example.com:6380/0"),
        ("another Valkey by Secret", {"secretKeyRef": {"name": "queue", "key": "url"}}),
    ):
        objects = render_set(name)
        assert read_env(find_container(objects, "worker-slow"))["MEMGATE_REDIS_URL"] == want
        assert not by_kind(objects, "StatefulSet")


def test_a_worker_has_room_for_its_largest_job() -> None:
    """Or the node would kill it before memgate's own limit speaks."""
    container = find_container(render_set("as it comes"), "worker-slow")

    limit = container["resources"]["limits"]["memory"]
    allowed = int(read_env(container)["MEMGATE_JOB_MEMORY_BYTES"])
    assert int(limit.removesuffix("Gi")) * GIB >= allowed + GIB


def test_programs_are_given_time_to_end() -> None:
    """As long as docker compose gives them, and the pause in which nobody is sent here any more."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    seconds = {
        name: pod["spec"].get("terminationGracePeriodSeconds")
        for name, pod in find_pods(render_set("as it comes"))
    }

    assert seconds["api"] == int(compose["service"]["stop_grace_period"].removesuffix("s")) + 5
    assert seconds["worker-slow"] == 60 * int(
        compose["worker"]["stop_grace_period"].removesuffix("m")
    )
    assert seconds["worker-fast"] == int(
        compose["worker-fast"]["stop_grace_period"].removesuffix("s")
    )


def test_an_upgrade_leaves_no_answer_of_an_old_worker_to_a_new_question() -> None:
    """Old workers stop before new ones start; the API and the webhooks never stop."""
    deployments = by_kind(render(HOLDING), "Deployment")
    kinds = {name: found["spec"].get("strategy") for name, found in deployments.items()}

    rolling = {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    assert kinds == {
        "memgate-api": rolling,
        "memgate-webhook": rolling,
        "memgate-controller": None,  # of old and new ones, one leads
        "memgate-worker-slow": {"type": "Recreate"},
        "memgate-worker-fast": {"type": "Recreate"},
    }


def test_a_budget_never_stops_a_drain_for_good() -> None:
    """Of a single pod it would."""
    assert set(by_kind(render_set("as it comes"), "PodDisruptionBudget")) == {
        *("memgate-api", "memgate-webhook", "memgate-worker-slow", "memgate-worker-fast")
    }
    single = render({"api.replicas": 1, "admission.replicas": 1})
    budgets = by_kind(single, "PodDisruptionBudget")
    assert set(budgets) == {"memgate-worker-slow", "memgate-worker-fast"}
    assert all("minAvailable" not in budget["spec"] for budget in budgets.values())
