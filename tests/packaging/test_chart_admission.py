"""The chart's webhooks: whom they are asked about, what they may do, how they are trusted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cel
import pytest

from memgate_service.admission.core.rules import ACTIONS, Exemption, PolicyRule, parse_policy
from memgate_service.admission.kubernetes.objects import SHAPES
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from memgate_service.cli import main as cli
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.settings import Settings
from memgate_worker.settings import WorkerSettings
from tests.chart import ROOT, render
from tests.packaging.chart_cases import (
    HOLDING,
    VALUE_SETS,
    by_kind,
    find_container,
    find_pods,
    read_env,
    render_set,
)
from tests.parts import find_part

#: recorded from a real API server
REVIEWS = ROOT / "tests" / "data" / "reviews"

pytestmark = pytest.mark.skipif(find_part("helm") is None, reason="helm is not here: make parts")


def test_the_webhooks_can_be_closed_to_all_but_the_api_server() -> None:
    """They need no key: the network is what guards them."""
    policies = by_kind(render_set("everything"), "NetworkPolicy")
    (rule,) = policies["gate-webhook-in"]["spec"]["ingress"]

    assert rule["from"][:2] == [
        {"ipBlock": {"cidr": "10.0.0.0/28"}},
        {"ipBlock": {"cidr": "fd00::/64"}},
    ]
    assert rule["ports"] == [{"port": 8443, "protocol": "TCP"}]
    (open_rule,) = by_kind(render_set("as it comes"), "NetworkPolicy")["memgate-webhook-in"][
        "spec"
    ]["ingress"]
    assert "from" not in open_rule


def _all_webhooks(objects: list[Any]) -> list[Any]:
    return [
        webhook
        for found in objects
        if found["kind"].endswith("WebhookConfiguration")
        for webhook in found["webhooks"]
    ]


def _webhooks(objects: list[Any]) -> list[Any]:
    """Return those that are asked about people's objects."""
    return [one for one in _all_webhooks(objects) if one["name"] != "policies.memgate.dev"]


def test_policies_are_checked_when_they_are_written() -> None:
    """By a webhook that never stands in the way, and by the schema of their kinds."""
    (webhook,) = (
        one
        for one in _all_webhooks(render_set("as it comes"))
        if one["name"].startswith("policies")
    )
    (rule,) = webhook["rules"]
    kinds = by_kind(render_set("as it comes"), "CustomResourceDefinition")

    assert webhook["failurePolicy"] == "Ignore"
    assert {f"{plural}.memgate.dev" for plural in rule["resources"]} == set(kinds)
    assert rule["scope"] == "*"
    for kind in kinds.values():
        assert kind["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        (version,) = kind["spec"]["versions"]
        said = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        assert set(said["on"]["properties"]) == set(ACTIONS)
        for decision, allowed in ACTIONS.items():
            assert set(said["on"]["properties"][decision]["enum"]) == allowed
        fields = set(said["rules"]["items"]["properties"])
        assert fields <= set(PolicyRule.__struct_fields__)
        assert set(said["exempt"]["items"]["properties"]) <= set(Exemption.__struct_fields__)
    assert len(_all_webhooks(render_set("little"))) == 2
    assert not by_kind(render_set("little"), "CustomResourceDefinition")


@pytest.mark.parametrize("name", [name for name in VALUE_SETS if name != "no webhooks"])
def test_the_webhooks_keep_out_of_where_they_would_do_harm(name: str) -> None:
    """Out of their own namespace, or memgate could not start again, and out of kube-system."""
    webhooks = _webhooks(render_set(name))
    assert [webhook["name"] for webhook in webhooks] == [
        "mutate.memgate.dev",
        "validate.memgate.dev",
    ]
    for webhook in webhooks:
        names, opt_out = webhook["namespaceSelector"]["matchExpressions"][:2]
        assert (names["key"], names["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
        assert {"memgate", "kube-system"} <= set(names["values"])
        assert opt_out == {
            "key": "memgate.dev/admission",
            "operator": "NotIn",
            "values": ["ignore"],
        }


def test_the_webhooks_are_declared_as_they_behave() -> None:
    """Fail open, quickly, in the one version of the review that there is, and safe on a dry run."""
    mutate, validate = _webhooks(render_set("as it comes"))

    for webhook in (mutate, validate):
        assert webhook["failurePolicy"] == "Ignore"
        assert webhook["sideEffects"] == "NoneOnDryRun"
        assert webhook["admissionReviewVersions"] == ["v1"]
        assert webhook["matchPolicy"] == "Equivalent"
        operations = {
            resource: rule["operations"]
            for rule in webhook["rules"]
            for resource in rule["resources"]
        }
        both = ["CREATE", "UPDATE"]
        assert operations == {
            "pods": ["UPDATE"],  # a rule of its own, after the one for CREATE
            **dict.fromkeys(("jobs", "cronjobs", "deployments", "statefulsets"), both),
            **dict.fromkeys(("pytorchjobs", "mpijobs", "trainjobs", "jobsets"), both),
            **dict.fromkeys(("rayjobs", "rayclusters"), both),
        }
    assert mutate["reinvocationPolicy"] == "IfNeeded"
    # a person waits for both, and for the first perhaps twice
    assert 2 * mutate["timeoutSeconds"] + validate["timeoutSeconds"] < 5
    assert mutate["clientConfig"]["service"]["path"] == "/webhooks/kubernetes/mutate"
    assert validate["clientConfig"]["service"]["path"] == "/webhooks/kubernetes/validate"


@pytest.mark.parametrize("component", ["webhook", "controller"])
def test_the_programs_are_told_of_the_policies(component: str) -> None:
    """Both of the same: what one holds, the other releases."""
    told = read_env(find_container(render_set("everything"), component))

    assert told["MEMGATE_ADMISSION_ON_TIMEOUT"] == "hold"
    assert told["MEMGATE_ADMISSION_ON_UNCERTAIN"] == "reject"
    assert told["MEMGATE_ADMISSION_GPUS"] == "rtx-3060,a100-80"
    assert told["MEMGATE_ADMISSION_RELEASERS"] == "system:masters,gpu-admins"
    assert told["MEMGATE_RIGHT_SIZE"] == "hami,node-selector"
    assert told["MEMGATE_MAX_JOBS"] == "50000"


def test_a_policy_is_a_file_that_changes_without_a_restart() -> None:
    """Webhooks and controller read the same one, a whole directory of a ConfigMap; one that holds

    needs a controller.
    """
    rules = [{"namespace": "team-*", "mode": "warn", "on": {"uncertain": "hold"}}]
    objects = render({"admission.policy": {"rules": rules}, "admission.mode": "audit"})
    text = by_kind(objects, "ConfigMap")["memgate-policy"]["data"]["policy.json"]
    document = parse_policy(text)

    assert (document.mode, document.rules[0].namespace) == ("audit", "team-*")
    for component in ("webhook", "controller"):
        container = find_container(objects, component)
        assert read_env(container)["MEMGATE_ADMISSION_POLICY"] == "/etc/memgate/policy/policy.json"
        (mount,) = [one for one in container["volumeMounts"] if one["name"] == "policy"]
        assert "subPath" not in mount


@pytest.mark.parametrize("name", VALUE_SETS)
def test_the_programs_take_what_they_are_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their own settings, read from the variables of their pods: no name or value is wrong."""
    readers: dict[str, type[Settings]] = {
        **dict.fromkeys(("api", "webhook"), ServiceSettings),
        "controller": AdmissionSettings,
        **dict.fromkeys(("worker-slow", "worker-fast"), WorkerSettings),
    }
    for component, pod in find_pods(render_set(name)):
        if component not in readers:
            continue
        told = read_env(pod["spec"]["containers"][0])
        if not isinstance(told.get("MEMGATE_REDIS_URL", ""), str):
            told["MEMGATE_REDIS_URL"] = "redis://of-a-secret/0"
        with monkeypatch.context() as patched:
            for variable, value in told.items():
                if variable.startswith("MEMGATE_") and isinstance(value, str):
                    patched.setenv(variable, value)
            patched.setenv("MEMGATE_HOST", "0.0.0.0")  # as the image has it
            settings = readers[component].from_environment()
        own = {f"MEMGATE_{field.upper()}" for field in type(settings).model_fields}
        others = {"MEMGATE_URL", "MEMGATE_API_KEY", *_for_all(name)}
        assert {found for found in told if found.startswith("MEMGATE_")} <= own | others


def _for_all(name: str) -> set[str]:
    """Return what every program is given, whether it heeds it or not."""
    return set(VALUE_SETS[name].get("env", ()))


def test_the_webhooks_serve_nothing_else() -> None:
    """They need no key, so there is nothing there that would."""
    told = read_env(find_container(render_set("as it comes"), "webhook"))

    assert told["MEMGATE_SERVE"] == "webhooks"
    assert told["MEMGATE_TLS_CERTIFICATE"] == "/etc/memgate/tls/tls.crt"
    assert "MEMGATE_SERVE" not in read_env(find_container(render_set("as it comes"), "api"))


def _asked_about_pods(webhook: Any) -> list[list[str]]:
    return [rule["operations"] for rule in webhook["rules"] if rule["resources"] == ["pods"]]


def test_who_holds_pods_is_asked_when_they_are_released() -> None:
    """Else whoever made one could take its gate or its label away; and a policy may always say so.

    Where nothing can be held, nobody looks at changes of pods.
    """
    for objects in (render(HOLDING), render_set("as it comes")):
        for webhook in _webhooks(objects):
            assert _asked_about_pods(webhook) == [["CREATE"], ["UPDATE"]]
    for webhook in _webhooks(render_set("little")):
        assert _asked_about_pods(webhook) == [["CREATE"]]


#: without what needs rights of its own
_HOLDING_ONLY = HOLDING | {"admission.policyResources": False, "audit.enabled": False}


def _resource(kind: str) -> tuple[str, str]:
    """Return group and plural of ``Kind.group``."""
    name, _, group = kind.partition(".")
    return group, f"{name.lower()}s"


def test_every_kind_that_we_know_is_asked_about_and_can_be_released() -> None:
    """A kind that the code learns is a kind for the chart."""
    objects = render(_HOLDING_ONLY)
    (role,) = (
        found["rules"]
        for name, found in by_kind(objects, "ClusterRole").items()
        if name.endswith("-controller")
    )
    listed = _pairs(rule for rule in role if "list" in rule["verbs"])

    for webhook in _webhooks(objects):
        assert _pairs(webhook["rules"]) == {_resource(kind) for kind in SHAPES}
    assert listed == {
        _resource(kind)
        for kind, shape in SHAPES.items()
        if shape.suspend is not None or shape.templates == ("",)
    }


def _pairs(rules: Iterable[Any]) -> set[tuple[str, str]]:
    return {(g, r) for rule in rules for g in rule["apiGroups"] for r in rule["resources"]}


def test_the_jobs_run_commands_that_there_are() -> None:
    """By the names that the command line knows."""
    known = {command.name for command in cli.app.registered_commands} | {"keys"}
    used = {
        container["command"][1]
        for _, pod in find_pods(render(HOLDING))
        for container in pod["spec"]["containers"]
        if container.get("command", [""])[0] == "memgate"
    }

    assert used == {"certificates", "controller", "keys"}
    assert used <= known


ANNOTATED = {"metadata": {"annotations": {"memgate.dev/job": "{}"}}}
NOT_OURS = {"metadata": {"annotations": {"example.com/memgate.dev": "{}"}}}


@pytest.mark.parametrize(
    ("group", "found", "want"),
    [
        ("", {"metadata": {}, "spec": {}}, False),
        ("", {**NOT_OURS, "spec": {}}, False),
        ("", {**ANNOTATED, "spec": {}}, True),
        ("batch", {"metadata": {}, "spec": {"template": {"spec": {}}}}, False),
        ("batch", {"metadata": {}, "spec": {"template": {**NOT_OURS, "spec": {}}}}, False),
        ("apps", {"metadata": {}, "spec": {"template": {**ANNOTATED, "spec": {}}}}, True),
        ("batch", {"metadata": {}, "spec": {"jobTemplate": {"spec": {"template": {}}}}}, False),
        ("batch", {"metadata": {}, "spec": {"jobTemplate": {**ANNOTATED}}}, True),
        (
            "batch",
            {"metadata": {}, "spec": {"jobTemplate": {"spec": {"template": ANNOTATED}}}},
            True,
        ),
        ("ray.io", {"metadata": {}, "spec": {}}, True),
    ],
    ids=[
        *("plain pod", "pod of others", "our pod", "plain job", "job of others", "our deployment"),
        *("plain cron job", "our job template", "our cron job", "a kind with templates elsewhere"),
    ],
)
def test_the_api_server_asks_about_our_objects_only(group: str, found: Any, want: bool) -> None:
    """The very expression, evaluated: without an annotation of ours nobody is asked."""
    for webhook in _webhooks(render_set("as it comes")):
        (condition,) = webhook["matchConditions"]
        request = {"resource": {"group": group}, "operation": "CREATE"}
        given = {"object": found, "oldObject": None, "request": request}
        assert cel.evaluate(condition["expression"], given) is want


@pytest.mark.parametrize(
    ("group", "old", "want"),
    [
        ("", {"metadata": {}}, False),
        ("", ANNOTATED, True),
        ("batch", {"metadata": {}, "spec": {"template": {**NOT_OURS, "spec": {}}}}, False),
        ("batch", {"metadata": {}, "spec": {"template": {**ANNOTATED, "spec": {}}}}, True),
    ],
    ids=["pod", "our pod", "job", "our job, by its template"],
)
def test_the_api_server_asks_when_an_annotation_is_taken_away(
    group: str, old: Any, want: bool
) -> None:
    """Or whoever made a held object could have it forgotten, and resume it unseen."""
    request = {"resource": {"group": group}, "operation": "UPDATE"}
    new = {"metadata": {"annotations": {"other": "x"}}, "spec": {}}
    for webhook in _webhooks(render_set("as it comes")):
        expression = webhook["matchConditions"][0]["expression"]
        given = {"object": new, "oldObject": old, "request": request}
        assert cel.evaluate(expression, given) is want


@pytest.mark.parametrize("path", sorted(REVIEWS.glob("*.json")), ids=lambda path: path.stem)
def test_the_api_server_asks_about_what_it_really_sends(path: Path) -> None:
    """Objects as a real one has them, with all that it fills in."""
    request = json.loads(path.read_text())["request"]
    expression = _webhooks(render_set("as it comes"))[0]["matchConditions"][0]["expression"]

    asked = cel.evaluate(
        expression,
        {"object": request["object"], "oldObject": request["oldObject"], "request": request},
    )

    assert asked is (path.stem != "create-without")


def test_an_old_api_server_is_asked_for_no_conditions() -> None:
    """It would refuse the field, and the whole configuration."""
    assert all(
        "matchConditions" not in w
        for w in _webhooks(render_set("as it comes", "--kube-version=1.27"))
    )
    assert all("matchConditions" not in w for w in _webhooks(render_set("little")))


def _rules(objects: list[Any], kind: str) -> dict[str, Any]:
    return {name: found["rules"] for name, found in by_kind(objects, kind).items()}


def test_roles_hold_what_is_needed_and_no_more() -> None:
    """Right by right: whoever adds one changes this test."""
    objects = render(_HOLDING_ONLY | {"admission.events": False})
    verbs = ["list", "patch"]
    roles = _rules(objects, "Role")

    assert roles.pop("memgate-controller") == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": ["memgate-controller"],
            "verbs": ["get", "update"],
        },
    ]
    assert roles == {
        f"memgate-{name}": [
            {
                "apiGroups": [""],
                "resources": ["secrets"],
                "resourceNames": [secret],
                "verbs": ["get", "patch"],
            }
        ]
        for name, secret in (
            ("certificates", "memgate-webhook-tls"),
            ("keys", "memgate-controller-key"),
        )
    }
    assert _rules(objects, "ClusterRole") == {
        "memgate-certificates": [
            {
                "apiGroups": ["admissionregistration.k8s.io"],
                "resources": ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"],
                "resourceNames": ["memgate"],
                "verbs": ["get", "patch"],
            }
        ],
        "memgate-webhook": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}],
        "memgate-controller": [
            *(
                {"apiGroups": [group], "resources": resources, "verbs": verbs}
                for group, resources in (
                    *(("", ["pods"]), ("batch", ["jobs"]), ("jobset.x-k8s.io", ["jobsets"])),
                    ("ray.io", ["rayjobs", "rayclusters"]),
                    ("kubeflow.org", ["pytorchjobs", "mpijobs"]),
                    ("trainer.kubeflow.org", ["trainjobs"]),
                )
            ),
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        ],
    }


def test_policies_events_and_the_audit_need_a_few_rights_more() -> None:
    """To list, and to write what is our own: nothing of anybody's is changed by them."""
    small = _rules(render(_HOLDING_ONLY | {"admission.events": False}), "ClusterRole")
    large = _rules(render(HOLDING), "ClusterRole")
    policies = ["clustermemgatepolicies", "memgatepolicies"]
    read = {"apiGroups": ["memgate.dev"], "resources": policies, "verbs": ["list"]}
    statuses = [f"{one}/status" for one in policies]

    assert [one for one in large["memgate-webhook"] if one not in small["memgate-webhook"]] == [
        read,
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    more = [one for one in large["memgate-controller"] if one not in small["memgate-controller"]]
    assert [one for one in more if one["verbs"] != ["list"]] == [
        {
            "apiGroups": ["wgpolicyk8s.io"],
            "resources": ["policyreports"],
            "verbs": ["list", "create", "patch", "delete"],
        },
        {"apiGroups": ["memgate.dev"], "resources": statuses, "verbs": ["patch"]},
    ]
    assert read in more
    listed = _pairs(one for one in large["memgate-controller"] if "list" in one["verbs"])
    assert {_resource(kind) for kind in SHAPES} <= listed


def test_rights_that_are_not_used_are_not_given() -> None:
    """Where nothing is held, nobody may change pods; where ConfigMaps are not read, nobody may."""
    assert "memgate-controller" not in _rules(render_set("little"), "ClusterRole")
    only = {"admission.policyResources": False, "audit.enabled": True}
    role = _rules(render(only), "ClusterRole")["memgate-controller"]
    assert not [one for one in role if "patch" in one["verbs"] and one["apiGroups"] == [""]]
    assert "memgate-webhook" not in _rules(render_set("little"), "ClusterRole")
    assert "memgate-certificates" not in _rules(render_set("cert-manager"), "ClusterRole")
    assert not _rules(render_set("no webhooks"), "ClusterRole")


@pytest.mark.parametrize("on", [{"undescribed": "rehearse"}, {"late": "reject"}])
def test_what_a_policy_suspends_the_controller_may_change(on: dict[str, str]) -> None:
    """A policy in the values may need that, too, and not only one with hold."""
    given = {"admission.policyResources": False, "audit.enabled": False}
    role = _rules(render(given | {"admission.policy": {"on": on}}), "ClusterRole")
    jobs = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list", "patch"]}
    assert jobs in role["memgate-controller"]


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ({}, True),
        ({"rehearsals.enabled": True}, False),
        ({"admission.policy": {"on": {"undescribed": "reject"}}}, False),
        ({"rehearsals.enabled": True, "admission.matchConditions": True}, True),
    ],
    ids=["as it comes", "rehearsals", "refused", "an operator's own wish"],
)
def test_what_nobody_described_is_asked_about_where_that_matters(
    values: dict[str, Any], want: bool
) -> None:
    """Else no webhook would ever hear of it."""
    for webhook in _webhooks(render(values)):
        assert ("matchConditions" in webhook) is want


def test_webhooks_hold_nothing_for_rehearsals_that_nobody_does() -> None:
    """Both know of them, or neither."""
    for is_on in (True, False):
        pods = dict(find_pods(render({"rehearsals.enabled": is_on})))
        for name in ("webhook", "controller"):
            names = {one["name"] for one in pods[name]["spec"]["containers"][0]["env"]}
            assert ("MEMGATE_REHEARSAL_IMAGE" in names) is is_on


def test_cert_manager_makes_what_the_webhooks_serve_with() -> None:
    """Same Secret, same name; the API server is told by cert-manager's own means."""
    objects = render_set("cert-manager")
    certificates = by_kind(objects, "Certificate")
    leaf = certificates["memgate-webhook"]["spec"]
    volumes = next(pod for name, pod in find_pods(objects) if name == "webhook")["spec"]["volumes"]

    assert leaf["dnsNames"] == ["memgate-webhook.memgate.svc"]
    assert (
        leaf["secretName"] == next(v for v in volumes if v["name"] == "tls")["secret"]["secretName"]
    )
    assert leaf["issuerRef"] == {
        "group": "cert-manager.io",
        "kind": "Issuer",
        "name": "memgate-webhook-ca",
    }
    issuers = by_kind(objects, "Issuer")
    authority = certificates["memgate-webhook-ca"]["spec"]
    assert issuers["memgate-webhook-ca"]["spec"] == {"ca": {"secretName": authority["secretName"]}}
    assert authority["isCA"] is True
    assert issuers[authority["issuerRef"]["name"]]["spec"] == {"selfSigned": {}}
    for kind in ("Validating", "Mutating"):
        configuration = by_kind(objects, f"{kind}WebhookConfiguration")["memgate"]
        annotation = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
        assert annotation == "memgate/memgate-webhook"
    assert "CronJob" not in {found["kind"] for found in objects}


def test_an_issuer_of_your_own_signs() -> None:
    """And none of ours is made."""
    objects = render_set("own issuer")

    (certificate,) = by_kind(objects, "Certificate").values()
    assert certificate["spec"]["issuerRef"] == {"kind": "ClusterIssuer", "name": "corporate"}
    assert not by_kind(objects, "Issuer")


def test_the_secrets_that_jobs_fill_are_rendered_empty() -> None:
    """What is in them must stay when the same files are applied once more."""
    secrets = by_kind(render(HOLDING), "Secret")

    for name in ("memgate-webhook-tls", "memgate-controller-key"):
        assert not {"data", "stringData"} & set(secrets[name])


def test_another_job_has_another_name() -> None:
    """A job cannot be changed: an upgrade that tries is refused."""
    first, second = (
        set(by_kind(render(values), "Job")) for values in ({}, {"certificates.days": 90})
    )

    assert len(first) == len(second) == 2
    assert len(first & second) == 1  # that of the controller's key, which is not changed
