"""A real Kubernetes API server: what the lab promises to the tests that use it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes import client as kube
from kubernetes.client.exceptions import ApiException

from tests.integration.kube_lab import Lab
from tests.integration.refuser import refuser
from tests.running import wait_until

pytestmark = pytest.mark.kubernetes


def test_the_administrator_may_do_anything(lab: Lab) -> None:
    """Both doors to the server open: kubectl, and the client that our programs use."""
    name = lab.make_namespace("team", purpose="test")

    found = kube.CoreV1Api(lab.client).list_namespace(label_selector="purpose=test")

    assert [item.metadata.name for item in found.items if item.metadata] == [name]
    assert lab.get("namespace", name)["status"]["phase"] == "Active"


def test_a_service_account_may_do_nothing_by_itself(lab: Lab) -> None:
    """RBAC is on: what a role does not grant is refused."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody"}}
    lab.apply(account)

    with lab.as_account("nobody") as nobody, pytest.raises(ApiException) as refused:
        kube.CoreV1Api(nobody.client).list_namespaced_pod("default")

    assert refused.value.status == 403
    assert "system:serviceaccount:default:nobody" in str(refused.value.body)


def test_somebody_elses_kind_can_be_made_known(lab: Lab) -> None:
    """Objects of controllers that are not here can be made, with any fields."""
    lab.install_kind("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
    kind = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}

    lab.apply(kind | {"metadata": {"name": "set"}, "spec": {"suspend": True}})

    assert lab.get("jobsets", "set")["spec"] == {"suspend": True}


def test_a_webhook_is_asked_in_labelled_namespaces_only(lab: Lab, tmp_path: Path) -> None:
    """What it says reaches the user; elsewhere nobody is asked."""
    asked = lab.make_namespace("asked", webhook="yes")
    other = lab.make_namespace("other")
    spec = {"containers": [{"name": "main", "image": "none"}], "restartPolicy": "Never"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    create = ("create", "--filename=-", "--namespace")
    with refuser(lab.certificate, tmp_path) as url:
        lab.install_webhook(url, lab.certificate.authority, failure_policy="Fail")
        try:
            # the API server takes note of a new webhook within a second or so
            wait_until(
                lambda: (
                    lab.kubectl(*create, asked, "--dry-run=server", given=pod, check=False).stderr
                    != ""
                ),
                "the webhook is in force",
            )
            refused = lab.kubectl(*create, asked, given=pod, check=False)
            lab.kubectl(*create, other, given=pod)
        finally:
            lab.remove_webhooks()

    assert '"validate.memgate.dev" denied the request' in refused.stderr
    assert "/webhooks/kubernetes/validate?timeout=5s says no" in refused.stderr
