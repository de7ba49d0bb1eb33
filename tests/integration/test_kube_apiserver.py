"""A real Kubernetes API server: what the lab promises to the tests that use it."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from kubernetes import client as kube
from kubernetes.client.exceptions import ApiException

from tests.integration.kube_lab import Lab
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


class _Refuser(BaseHTTPRequestHandler):
    """Refuses everything that it is asked about."""

    def do_POST(self) -> None:
        """Answer an AdmissionReview."""
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        uid = review["request"]["uid"]
        message = f"{self.path} says no"
        response = {"uid": uid, "allowed": False, "status": {"message": message}}
        body = json.dumps(review | {"response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Be silent."""


@contextmanager
def _refuser(lab: Lab) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Refuser)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(lab.tls_certificate, lab.tls_key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def test_a_webhook_is_asked_in_labelled_namespaces_only(lab: Lab) -> None:
    """What it says reaches the user; elsewhere nobody is asked."""
    asked = lab.make_namespace("asked", webhook="yes")
    other = lab.make_namespace("other")
    spec = {"containers": [{"name": "main", "image": "none"}], "restartPolicy": "Never"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    create = ("create", "--filename=-", "--namespace")
    with _refuser(lab) as url:
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
