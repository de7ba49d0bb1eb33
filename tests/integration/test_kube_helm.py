"""A real helm and a real kubectl install the chart: what jobs put into the cluster stays there."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memgate_service.admission.kubernetes.certificates import CertificateKeeper, CertificateTarget
from memgate_service.admission.kubernetes.cluster import Cluster
from tests.chart import CHART, MANIFEST_VALUES, helm
from tests.integration.kube_lab import Lab
from tests.parts import find_part

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(find_part("helm") is None, reason="helm is not here: make parts"),
]


@pytest.fixture
def old_chart(tmp_path: Path) -> Path:
    """The chart for a server of 1.20: the same objects, two of them in the version before."""
    copy = tmp_path / "chart"
    shutil.copytree(CHART, copy)
    for path in copy.rglob("*.yaml"):
        text = path.read_text()
        text = text.replace("batch/v1\nkind: CronJob", "batch/v1beta1\nkind: CronJob")
        text = text.replace("policy/v1\n", "policy/v1beta1\n")
        path.write_text(text.replace('kubeVersion: ">=1.25.0-0"', ""))
    return copy


@pytest.fixture
def run_helm(lab: Lab, old_chart: Path) -> Iterator[Callable[..., str]]:
    """Run a command of helm on the lab, for a release in a namespace of the same name."""

    def run(command: str, name: str, *arguments: str) -> str:
        chart = () if command == "uninstall" else (old_chart,)
        # several releases share the kinds, which others' tests have installed
        kinds = () if command == "uninstall" else ("--set=crds.install=false",)
        where = (f"--kubeconfig={lab.kubeconfig}", f"--namespace={name}", *kinds)
        return helm(command, name, *chart, *where, *arguments).stdout

    yield run
    lab.remove_webhooks()  # nobody is there to be asked, and others' tests would wait for them


def _keep_certificate(lab: Lab, name: str) -> None:
    prefix = name if "memgate" in name else f"{name}-memgate"
    place = CertificateTarget(
        namespace=name,
        secret=f"{prefix}-webhook-tls",
        hosts=(f"{prefix}-webhook.{name}.svc",),
        webhook=prefix,
    )
    with lab.as_account(f"{prefix}-certificates", name) as account:
        keeper = CertificateKeeper(
            Cluster(account.client), place, lambda: datetime.now(UTC), timedelta(days=9)
        )
        assert keeper.keep().renewed


def _state(lab: Lab, name: str) -> tuple[Any, ...]:
    """Return what must stay: certificate, whom the API server trusts, password."""
    prefix = name if "memgate" in name else f"{name}-memgate"
    return (
        lab.get("secret", f"{prefix}-webhook-tls", name)["data"],
        *(
            lab.get(f"{kind}webhookconfigurations", prefix)["webhooks"][0]["clientConfig"][
                "caBundle"
            ]
            for kind in ("validating", "mutating")
        ),
    )


def test_an_upgrade_keeps_what_was_made(lab: Lab, run_helm: Callable[..., str]) -> None:
    """Password, certificate and trust are the same after it; what was changed is changed."""
    lab.make_namespace("gate")
    run_helm("install", "gate")
    _keep_certificate(lab, "gate")
    before = _state(lab, "gate")
    password = lab.get("secret", "gate-memgate-valkey", "gate")["data"]["password"]

    told = run_helm(
        "upgrade", "gate", "--set=admission.mutateTimeoutSeconds=7,certificates.days=90"
    )

    assert "gate-memgate-api -- memgate keys create" in told
    assert _state(lab, "gate") == before
    assert lab.get("secret", "gate-memgate-valkey", "gate")["data"]["password"] == password
    assert len(base64.b64decode(password)) == 40
    (webhook,) = lab.get("mutatingwebhookconfigurations", "gate-memgate")["webhooks"]
    assert webhook["timeoutSeconds"] == 7


def test_after_it_is_uninstalled_nothing_of_it_is_asked(
    lab: Lab, run_helm: Callable[..., str]
) -> None:
    """Above all no webhook configuration: under Fail it would stop the cluster."""
    lab.make_namespace("gone")
    run_helm("install", "gone", "--set=admission.failurePolicy=Fail")

    run_helm("uninstall", "gone", "--cascade=background")

    label = "--selector=app.kubernetes.io/instance=gone"
    kinds = "validatingwebhookconfigurations,mutatingwebhookconfigurations,clusterroles"
    assert lab.kubectl("get", kinds, label, "--output=name").stdout == ""
    left = lab.kubectl("get", "deployments,secrets", label, "--namespace=gone", "--output=name")
    assert left.stdout == ""


def test_plain_manifests_can_be_applied_again_and_again(lab: Lab, old_chart: Path) -> None:
    """By kubectl, as docs/kubernetes.md says; what jobs have made stays."""
    lab.make_namespace("plain-memgate")
    text = helm(
        *("template", "plain-memgate", old_chart, "--namespace=plain-memgate", "--skip-tests"),
        *(f"--values={MANIFEST_VALUES}", "--set=admission.matchConditions=false"),
        "--set=namespace.create=false",
    ).stdout
    lab.kubectl("apply", "--filename=-", given=text)
    _keep_certificate(lab, "plain-memgate")
    before, generations = _state(lab, "plain-memgate"), _generations(lab, "plain-memgate")

    lab.kubectl("apply", "--filename=-", given=text)
    after = _state(lab, "plain-memgate")
    lab.remove_webhooks()

    assert after == before
    assert _generations(lab, "plain-memgate") == generations


def test_plain_manifests_can_be_applied_by_the_server(lab: Lab, old_chart: Path) -> None:
    """Again and again: what our job has written is its own, and there is no conflict."""
    lab.make_namespace("side-memgate")
    text = helm(
        *("template", "side-memgate", old_chart, "--namespace=side-memgate", "--skip-tests"),
        *(f"--values={MANIFEST_VALUES}", "--set=admission.matchConditions=false"),
        *("--set=namespace.create=false", "--set=crds.install=false"),
    ).stdout
    apply = ("apply", "--server-side", "--filename=-")
    lab.kubectl(*apply, given=text)
    _keep_certificate(lab, "side-memgate")
    before = _state(lab, "side-memgate")

    lab.kubectl(*apply, given=text)
    after = _state(lab, "side-memgate")
    lab.remove_webhooks()

    assert after == before


def _generations(lab: Lab, namespace: str) -> str:
    """Return how often each program was changed, and so restarted."""
    columns = "custom-columns=:.kind,:.metadata.name,:.metadata.generation"
    kinds = "deployments,statefulsets"
    ran = lab.kubectl("get", kinds, f"--namespace={namespace}", f"--output={columns}")
    assert len(ran.stdout.splitlines()) >= 5
    return ran.stdout
