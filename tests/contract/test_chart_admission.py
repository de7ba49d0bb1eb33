"""The chart's webhooks: whom they are asked about, what they may do, how they are trusted."""

from __future__ import annotations

import json
from typing import Any

import cel
import pytest

from tests.chart import render
from tests.contract.chart_cases import (
    HOLDING,
    VALUE_SETS,
    by_kind,
    find_container,
    find_pods,
    read_env,
    render_set,
)
from tests.parts import find_part

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


def _webhooks(objects: list[Any]) -> list[Any]:
    return [
        webhook
        for found in objects
        if found["kind"].endswith("WebhookConfiguration")
        for webhook in found["webhooks"]
    ]


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
        assert webhook["timeoutSeconds"] == 5
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
            "pods": ["CREATE"],
            **dict.fromkeys(("jobs", "cronjobs", "deployments", "statefulsets"), both),
            **dict.fromkeys(("pytorchjobs", "trainjobs", "rayjobs", "jobsets"), both),
        }
    assert mutate["reinvocationPolicy"] == "IfNeeded"
    assert mutate["clientConfig"]["service"]["path"] == "/webhooks/kubernetes/mutate"
    assert validate["clientConfig"]["service"]["path"] == "/webhooks/kubernetes/validate"


def test_the_program_is_told_of_the_policies() -> None:
    """What the values say is what its variables say."""
    told = read_env(find_container(render_set("everything"), "webhook"))

    assert told["MEMGATE_SERVE"] == "webhooks"
    assert told["MEMGATE_ADMISSION_ON_TIMEOUT"] == "hold"
    assert told["MEMGATE_ADMISSION_ON_UNCERTAIN"] == "reject"
    assert told["MEMGATE_ADMISSION_WAIT_SECONDS"] == "3"
    assert json.loads(told["MEMGATE_ADMISSION_PATHS"]) == {"Experiment": ["spec.template"]}
    assert told["MEMGATE_RIGHT_SIZE"] == "hami,node-selector"
    assert told["MEMGATE_MAX_WAITING"] == "64"
    assert told["MEMGATE_MAX_JOBS"] == "50000"


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
        request = {"resource": {"group": group}}
        assert cel.evaluate(condition["expression"], {"object": found, "request": request}) is want


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
    objects = render(HOLDING)
    read_and_patch = ["get", "list", "watch", "patch"]

    assert _rules(objects, "Role") == {
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
                {"apiGroups": [group], "resources": [resource], "verbs": read_and_patch}
                for group, resource in (
                    *(("", "pods"), ("batch", "jobs"), ("jobset.x-k8s.io", "jobsets")),
                    *(("ray.io", "rayjobs"), ("kubeflow.org", "pytorchjobs")),
                    ("trainer.kubeflow.org", "trainjobs"),
                )
            ),
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        ],
    }


def test_rights_that_are_not_used_are_not_given() -> None:
    """Where nothing is held, nobody may change pods; where ConfigMaps are not read, nobody may."""
    assert "memgate-controller" not in _rules(render_set("as it comes"), "ClusterRole")
    assert "memgate-webhook" not in _rules(render_set("little"), "ClusterRole")
    assert "memgate-certificates" not in _rules(render_set("cert-manager"), "ClusterRole")
    assert not _rules(render_set("no webhooks"), "ClusterRole")


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

    assert len(first) == len(second) == 1
    assert not first & second
