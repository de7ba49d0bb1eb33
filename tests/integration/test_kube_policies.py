"""Policies as objects of a real API server: schema, webhook, status, precedence, no restart."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart import CHART
from tests.integration.kube_gate import (
    LARGE,
    NAMESPACE,
    Webhooks,
    controlling,
    create,
    forget_webhooks,
    gating,
    make_job,
)
from tests.integration.kube_lab import Lab
from tests.running import running, wait_until
from tests.valkey import running_valkey

pytestmark = pytest.mark.kubernetes

_GROUP = "memgate.dev/v1alpha1"
_RULES = [
    {
        "apiGroups": ["memgate.dev"],
        "apiVersions": ["v1alpha1"],
        "resources": ["clustermemgatepolicies", "memgatepolicies"],
        "operations": ["CREATE", "UPDATE"],
        "scope": "*",
    }
]


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a Valkey server, and somebody who runs jobs."""
    log = tmp_path_factory.mktemp("worker") / "log"
    with running_valkey() as url, running("memgate_worker", log, redis_url=url):
        yield url


@pytest.fixture(scope="module")
def kinds(lab: Lab) -> None:
    """Install the chart's kinds, and the namespace that the webhooks look at."""
    for path in sorted((CHART / "files" / "crds").glob("*.yaml")):
        document = yaml.safe_load(path.read_text())
        lab.apply(document)
        name = document["metadata"]["name"]
        lab.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=60s")
    lab.make_namespace(NAMESPACE, webhook="yes")


@pytest.fixture
def start(lab: Lab, valkey: str, tmp_path: Path) -> Iterator[Callable[..., Webhooks]]:
    """Start the webhooks, with policies as objects."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Webhooks:
            settings |= {"admission_policy_resources": "true", "kubeconfig": str(lab.kubeconfig)}
            return stack.enter_context(gating(lab, valkey, tmp_path, **settings))

        yield make
    forget_webhooks(lab)
    for kind in ("clustermemgatepolicies", "memgatepolicies"):
        lab.kubectl("delete", kind, "--all", "--all-namespaces", check=False)


def _policy(name: str, namespace: str = "", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    kind = "MemgatePolicy" if namespace else "ClusterMemgatePolicy"
    return {"apiVersion": _GROUP, "kind": kind, "metadata": metadata, "spec": spec}


def _try(lab: Lab, policy: dict[str, Any]) -> Any:
    return lab.kubectl("apply", "--filename=-", "--validate=false", given=policy, check=False)


@pytest.mark.usefixtures("kinds")
def test_the_schema_is_structural_and_refuses_mistakes(lab: Lab) -> None:
    """Also while memgate is away: the API server itself does."""
    for plural in ("clustermemgatepolicies", "memgatepolicies"):
        conditions = lab.get("crd", f"{plural}.memgate.dev")["status"]["conditions"]
        by_type = {one["type"]: one["status"] for one in conditions}
        assert by_type["Established"] == "True"
        assert by_type.get("NonStructuralSchema", "False") == "False"

    wrong = _try(lab, _policy("wrong", mode="watch"))
    never = _try(lab, _policy("never", on={"late": "hold"}))
    text = _try(lab, _policy("text", rules=[{"user": "ada"}]))
    everybody = _try(lab, _policy("everybody", exempt=[{"label": {}}]))

    assert "spec.mode" in wrong.stderr
    assert "spec.on.late" in never.stderr
    assert "spec.rules.user" in text.stderr
    assert "spec.exempt.label" in everybody.stderr


@pytest.mark.usefixtures("kinds")
def test_a_policy_changes_what_happens_without_a_restart(
    lab: Lab, start: Callable[..., Webhooks]
) -> None:
    """The cluster's mode, a namespace that tightens, and one that may not loosen."""
    webhooks = start()
    lab.install_webhook(
        webhooks.url,
        lab.certificate.authority,
        path="/webhooks/kubernetes/policies",
        rules=_RULES,
        namespaceSelector={},
        name="policies.memgate.dev",
    )
    numbers = iter(range(100))

    def try_large() -> Any:
        return create(lab, make_job(f"large-{next(numbers)}", spec=LARGE))

    # the validating configuration of the lab was replaced: ask about policies alone
    wait_until(
        lambda: "unknown field `mood`" in _try(lab, _policy("x", mood="warn")).stderr,
        "the API server asks about policies",
    )
    assert (
        "rules[1] has 'namespace'"
        in _try(lab, _policy("x", NAMESPACE, rules=[{"namespace": ["a"], "mode": "warn"}])).stderr
    )
    lab.remove_webhooks()
    for kind in ("Mutating", "Validating"):
        lab.install_webhook(webhooks.url, lab.certificate.authority, kind=kind, timeout=20)

    wait_until(lambda: "does not fit" in try_large().stderr, "refused before there is a policy")
    lab.apply(_policy("main", mode="warn"))
    wait_until(lambda: try_large().returncode == 0, "the cluster's policy says warn")
    assert "memgate only warns here; otherwise this would be refused" in try_large().stderr

    lab.apply(_policy("strict", NAMESPACE, mode="enforce"))
    wait_until(lambda: try_large().returncode != 0, "the namespace tightens it")
    lab.apply(_policy("main", mode="enforce"), _policy("strict", NAMESPACE, mode="audit"))
    wait_until(
        lambda: lab.get("memgatepolicies", "strict", NAMESPACE)["spec"]["mode"] == "audit",
        "it is written",
    )
    assert try_large().returncode != 0
    lab.apply(_policy("main", mode="enforce", namespacedPolicies="any"))
    wait_until(lambda: try_large().returncode == 0, "the cluster's allows it to loosen")
    lab.kubectl("delete", "memgatepolicies", "strict", f"--namespace={NAMESPACE}")
    lab.kubectl("delete", "clustermemgatepolicies", "main")
    wait_until(lambda: try_large().returncode != 0, "both are gone")


def _condition(lab: Lab, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
    found = lab.get(kind, name, namespace).get("status", {}).get("conditions", [{}])
    assert isinstance(found[0], dict)
    return found[0]


@pytest.mark.usefixtures("kinds")
def test_the_status_says_what_became_of_a_policy(lab: Lab, valkey: str, tmp_path: Path) -> None:
    """In force, in part, or broken: then the last good one stays in force."""
    lab.apply(_policy("main", mode="warn"), _policy("own", NAMESPACE, mode="audit"))
    kind = "clustermemgatepolicies"
    with controlling(lab, valkey, tmp_path, admission_policy_resources="true"):
        wait_until(lambda: _condition(lab, kind, "main").get("reason") == "Applied", "in force")
        own = _condition(lab, "memgatepolicies", "own", NAMESPACE)
        assert own["reason"] == "AppliedInPart"
        assert "mode audit is milder than warn" in own["message"]
        # nobody is asked about policies here, and the schema lets an unknown field through
        assert _try(lab, _policy("main", mood="enforce")).returncode == 0
        wait_until(lambda: _condition(lab, kind, "main")["status"] == "False", "it is wrong")
        broken = _condition(lab, kind, "main")
        lab.apply(_policy("main", mode="audit"))
        wait_until(lambda: _condition(lab, kind, "main")["status"] == "True", "it is mended")
    assert "its last good version stays in force" in broken["message"]
    assert "mood" in broken["message"]
    assert lab.get(kind, "main")["status"]["observedGeneration"] == 3
    for plural in (kind, "memgatepolicies"):
        lab.kubectl("delete", plural, "--all", "--all-namespaces")


def test_of_two_controllers_one_works_and_the_other_takes_over(
    lab: Lab, valkey: str, tmp_path: Path
) -> None:
    """The Lease says which; a killed one is replaced when the Lease has run out."""
    lab.make_namespace("leading")
    words = "--lease=leading/controller"

    def holder() -> str:
        ran = lab.kubectl("get", "lease", "controller", "-n", "leading", "-o=json", check=False)
        return str(json.loads(ran.stdout)["spec"]["holderIdentity"]) if ran.stdout else ""

    with controlling(lab, valkey, tmp_path, words, words) as processes:
        wait_until(lambda: bool(holder()), "one leads")
        first = holder()
        logs = [(tmp_path / f"controller-{number}.log") for number in range(2)]
        wait_until(lambda: any(first in log.read_text() for log in logs), "it says so")
        (leader,) = (number for number, log in enumerate(logs) if first in log.read_text())
        processes[leader].send_signal(signal.SIGKILL)
        wait_until(lambda: holder() not in ("", first), "the other takes over", 60)
    assert holder() == ""  # it lets go when it is stopped
