"""Records what a real API server asks about the examples: ``python -m tests.record_reviews``.

Makes the objects of deploy/examples/kubernetes in a lab of its own, changes some, and writes each
AdmissionReview to tests/data/reviews, as it came in. Needs ``make kube-apiserver``.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import yaml

from tests.integration.kube_lab import Lab, running_lab

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "deploy" / "examples" / "kubernetes"
REVIEWS = ROOT / "tests" / "data" / "reviews"

#: kinds that come with other people's controllers: group, version, kind, plural
KINDS = (
    ("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"),
    ("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs"),
    ("ray.io", "v1", "RayJob", "rayjobs"),
    ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
)

#: everything that we look at
RULES = [
    {
        "apiGroups": ["", "batch", "apps", *(group for group, *_ in KINDS)],
        "apiVersions": ["*"],
        "resources": [
            *("pods", "jobs", "cronjobs", "deployments", "statefulsets"),
            *(plural for *_, plural in KINDS),
        ],
        "operations": ["CREATE", "UPDATE"],
    }
]


class _Recorder(BaseHTTPRequestHandler):
    """Lets everything in, and keeps what it was asked."""

    asked: list[Any] = []  # noqa: RUF012  one recorder at a time

    def do_POST(self) -> None:
        """Answer an AdmissionReview."""
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(review)
        said = {"uid": review["request"]["uid"], "allowed": True}
        body = json.dumps({k: review[k] for k in ("apiVersion", "kind")} | {"response": said})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def _recording(lab: Lab) -> Iterator[list[Any]]:
    server = HTTPServer(("127.0.0.1", 0), _Recorder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(lab.tls_certificate, lab.tls_key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"https://127.0.0.1:{server.server_address[1]}"
    lab.install_webhook(url, lab.certificate.authority, failure_policy="Fail", rules=RULES)
    try:
        yield _Recorder.asked
    finally:
        server.shutdown()
        thread.join()


def read_example(name: str) -> list[Any]:
    """Return the objects of an example, as this API server knows them."""
    documents = list(yaml.safe_load_all((EXAMPLES / name).read_text()))
    for document in documents:
        if document["kind"] == "CronJob":  # v1 came with 1.21
            document["apiVersion"] = "batch/v1beta1"
    return documents


def main() -> None:
    """Record."""
    REVIEWS.mkdir(exist_ok=True)
    with TemporaryDirectory() as directory, running_lab(Path(directory)) as lab:
        for kind in KINDS:
            lab.install_kind(*kind)
        namespace = lab.make_namespace("team", webhook="yes")
        with _recording(lab) as asked:

            def record(name: str, *arguments: str, given: Any = None) -> None:
                asked.clear()
                lab.kubectl(*arguments, f"--namespace={namespace}", given=given)
                (review,) = asked
                path = REVIEWS / f"{name}.json"
                path.write_text(json.dumps(review, indent=1, sort_keys=True) + "\n")

            _warm_up(lab, namespace, asked)
            for path in sorted(EXAMPLES.glob("*.yaml")):
                objects = read_example(path.name)
                for more in objects[:-1]:
                    lab.kubectl("apply", "--filename=-", f"--namespace={namespace}", given=[more])
                record(
                    *(f"create-{path.stem}", "create", "--filename=-", "--validate=false"),
                    given=objects[-1:],
                )
            record("update-label", "label", "deployment", "online-trainer", "team=vision")
            image = {
                "op": "replace",
                "path": "/spec/template/spec/containers/0/image",
                "value": "x",
            }
            record(
                *("update-image", "patch", "deployment", "online-trainer", "--type=json"),
                f"--patch={json.dumps([image])}",
            )
            record("create-without", "run", "bare", "--image=busybox", "--restart=Never")
            record(
                *("dry-run", "create", "--filename=-", "--dry-run=server"),
                given=[_renamed(read_example("job.yaml")[-1], "another")],
            )


def _warm_up(lab: Lab, namespace: str, asked: list[Any]) -> None:
    """Make pods until the API server asks: it hears of a webhook a moment after it is installed."""
    while not asked:
        lab.kubectl("run", "try", "--image=busybox", f"--namespace={namespace}")
        lab.kubectl("delete", "pod", "try", "--now", f"--namespace={namespace}")


def _renamed(document: Any, name: str) -> Any:
    return document | {"metadata": document["metadata"] | {"name": name}}


if __name__ == "__main__":
    main()
