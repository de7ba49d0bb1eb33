"""The chart on a real API server: what it makes is taken, its roles are enough and no more."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memgate import Client
from memgate_service.admission.kubernetes.certificates import (
    CertificateKeeper,
    CertificateTarget,
    Kept,
    read_issued,
)
from memgate_service.admission.kubernetes.cluster import Cluster
from memgate_service.admission.kubernetes.controller import HoldController
from memgate_service.admission.kubernetes.issuing import Issued, end_of, issue
from memgate_service.admission.kubernetes.secret import Secret
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from memgate_worker.queue.client import QueueClient
from memgate_worker.queue.keys import KeyRing, Role
from memgate_worker.queue.settings import QueueSettings
from tests.chart import render
from tests.integration.kube_lab import Lab
from tests.integration.refuser import refuser
from tests.parts import find_part
from tests.running import wait_until

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(find_part("helm") is None, reason="helm is not here: make parts"),
]

NAMESPACE = "memgate"
HOST = "memgate-webhook.memgate.svc"
LIFE = timedelta(days=90)

#: one that decides, one for policies, one that fills in
_NUM_WEBHOOKS = 3

#: what a server of 1.20 does not know yet; the versions differ, the fields do not
_NEWER = {"policy/v1", "batch/v1 CronJob", "autoscaling/v2"}

_HOLDING = {"admission.onTimeout": "hold", "admission.matchConditions": False}


def _is_known(found: Any) -> bool:
    version = found["apiVersion"]
    return not _NEWER & {version, f"{version} {found['kind']}"}


@pytest.fixture(scope="module")
def chart(lab: Lab) -> Iterator[list[Any]]:
    """The chart with a controller, in the API server, as far as that knows the kinds."""
    lab.make_namespace(NAMESPACE)
    objects = render(_HOLDING, "--skip-tests", "--kube-version=1.27")
    lab.apply(*filter(_is_known, objects))
    yield objects
    lab.remove_webhooks()  # nobody is there to be asked, and others' tests would wait for them


@pytest.fixture
def place(lab: Lab, chart: list[Any]) -> CertificateTarget:
    """An empty Secret and configurations that trust nobody, as they are when all is new."""
    lab.apply(*(found for found in chart if found["kind"].endswith("WebhookConfiguration")))
    lab.kubectl("patch", "secret", "memgate-webhook-tls", "-n", NAMESPACE, '--patch={"data":null}')
    for kind in ("validating", "mutating"):
        _set_bundle(lab, f"{kind}webhookconfigurations", None)
    return CertificateTarget(
        namespace=NAMESPACE, secret="memgate-webhook-tls", hosts=(HOST,), webhook="memgate"
    )


def _set_bundle(lab: Lab, kind: str, bundle: bytes | None) -> None:
    value = base64.b64encode(bundle).decode() if bundle else None
    number = len(lab.get(kind, "memgate")["webhooks"])
    patch = [
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": value}
        for index in range(number)
    ]
    lab.kubectl("patch", kind, "memgate", "--type=json", f"--patch={json.dumps(patch)}")


def _keep(lab: Lab, place: CertificateTarget, days: int = 0, **options: bool) -> Kept:
    """Do what ``memgate certificates`` does, as the chart's account, so many days from now."""
    now = datetime.now(UTC) + timedelta(days=days)
    with lab.as_account("memgate-certificates", NAMESPACE) as account:
        return CertificateKeeper(Cluster(account.client), place, lambda: now, LIFE).keep(**options)


def _name(found: Any) -> str:
    return str(found["metadata"]["name"])


def _secret(lab: Lab) -> dict[str, bytes]:
    data = lab.get("secret", "memgate-webhook-tls", NAMESPACE).get("data", {})
    return {key: base64.b64decode(value) for key, value in data.items()}


def _bundles(lab: Lab) -> list[bytes]:
    """Return whom the API server trusts, by configuration."""
    return [
        base64.b64decode(webhook["clientConfig"]["caBundle"])
        for kind in ("validating", "mutating")
        for webhook in lab.get(f"{kind}webhookconfigurations", "memgate")["webhooks"]
    ]


def test_the_api_server_takes_what_the_chart_makes(lab: Lab, chart: list[Any]) -> None:
    """Every object of a kind that it knows, as it would for real."""
    known = [found for found in chart if _is_known(found)]

    ran = lab.kubectl("apply", "--dry-run=server", "--filename=-", given=known)

    assert len(ran.stdout.splitlines()) == len(known) >= 40


def test_a_new_certificate_is_in_the_secret_and_trusted(lab: Lab, place: CertificateTarget) -> None:
    """The first run: the account's rights, which are for three objects, are enough."""
    kept = _keep(lab, place)

    assert kept.renewed == "there is none, or it cannot be read"
    assert kept.changed == ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
    secret = _secret(lab)
    assert set(secret) == {"tls.crt", "tls.key", "ca.crt"}
    assert end_of(secret["tls.crt"]) == kept.end
    assert _bundles(lab) == [secret["ca.crt"]] * _NUM_WEBHOOKS


def test_nothing_happens_while_it_is_good(lab: Lab, place: CertificateTarget) -> None:
    """A run each day changes nothing, on most days."""
    first = _keep(lab, place)
    before = _secret(lab)

    second = _keep(lab, place, days=50)

    assert (second.renewed, second.changed, second.end) == (None, (), first.end)
    assert _secret(lab) == before


def test_a_renewal_leaves_nobody_without_trust(lab: Lab, place: CertificateTarget) -> None:
    """Pods that have not seen the new certificate yet are trusted as well; later no more."""
    _keep(lab, place)
    old = _secret(lab)["ca.crt"]

    _keep(lab, place, days=70)
    new = _secret(lab)["ca.crt"]
    while_both = _bundles(lab)
    _keep(lab, place, days=100)

    assert while_both == [new + old] * _NUM_WEBHOOKS
    assert _bundles(lab) == [new] * _NUM_WEBHOOKS


def test_somebody_elses_change_is_mended(lab: Lab, place: CertificateTarget) -> None:
    """A configuration that lost its trust, by whatever means, has it again after the next run."""
    _keep(lab, place)
    authority = _secret(lab)["ca.crt"]
    other = issue([HOST], now=datetime.now(UTC), life=LIFE).authority
    _set_bundle(lab, "mutatingwebhookconfigurations", other)

    kept = _keep(lab, place)

    assert kept.changed == ("mutatingwebhookconfigurations",)
    assert _bundles(lab)[-1].startswith(authority)


def test_by_force_the_old_one_is_trusted_no_more(lab: Lab, place: CertificateTarget) -> None:
    """For a key that others have seen."""
    _keep(lab, place)
    old = _secret(lab)["ca.crt"]

    kept = _keep(lab, place, force=True)

    assert kept.renewed == "it was asked for"
    assert _bundles(lab) == [_secret(lab)["ca.crt"]] * _NUM_WEBHOOKS
    assert _secret(lab)["ca.crt"] != old


def test_two_at_a_time_end_with_one_that_is_trusted(lab: Lab, place: CertificateTarget) -> None:
    """Who comes second finds the Secret changed, starts over, and takes what is there."""
    now = datetime.now(UTC)
    rivals = iter([True])
    with lab.as_account("memgate-certificates", NAMESPACE) as account:
        rival = CertificateKeeper(Cluster(account.client), place, lambda: now, LIFE)

        def clock() -> datetime:
            # the Secret was read a moment ago: now the rival does all of its work
            if next(rivals, False):
                rival.keep()
            return now

        kept = CertificateKeeper(Cluster(account.client), place, clock, LIFE).keep()

    authority = _secret(lab)["ca.crt"]
    assert kept.renewed is None
    assert all(authority in bundle for bundle in _bundles(lab))


def test_the_api_server_trusts_what_was_made(lab: Lab, tmp_path: Path) -> None:
    """A webhook that serves with it is really asked: the new one, and the one before."""
    namespace = lab.make_namespace("trusting", webhook="yes")
    empty = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"}}
    lab.kubectl("create", "-f-", f"--namespace={namespace}", given=empty)
    lab.remove_webhooks()
    lab.install_webhook("https://127.0.0.1:9", b"", failure_policy="Fail")

    def renew(*hosts: str) -> Issued:
        place = CertificateTarget(
            namespace=namespace, secret="tls", hosts=hosts, webhook="lab-validate"
        )
        keeper = CertificateKeeper(Cluster(lab.client), place, lambda: datetime.now(UTC), LIFE)
        assert keeper.keep().renewed
        return read_issued(Secret(Cluster(lab.client), namespace, "tls").read())

    try:
        old = renew("127.0.0.1")
        new = renew("127.0.0.1", "localhost")
        stranger = issue(["127.0.0.1"], now=datetime.now(UTC), life=LIFE)
        said = [_ask(lab, namespace, issued, tmp_path) for issued in (old, new, stranger)]
    finally:
        lab.remove_webhooks()

    assert "says no" in said[0]
    assert "says no" in said[1]
    assert "certificate signed by unknown authority" in said[2]


def _ask(lab: Lab, namespace: str, issued: Issued, directory: Path) -> str:
    """Have the API server ask a webhook with this certificate; return what it says of that."""
    spec = {"containers": [{"name": "main", "image": "none"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    create = ("create", "-f-", f"--namespace={namespace}", "--dry-run=server")
    configuration = lab.get("validatingwebhookconfigurations", "lab-validate")
    with refuser(issued, directory) as url:
        configuration["webhooks"][0]["clientConfig"]["url"] = url
        port = url.rpartition(":")[2]
        lab.kubectl("replace", "-f-", given=configuration)
        said: list[str] = []

        def is_asked() -> bool:
            said.append(lab.kubectl(*create, given=pod, check=False).stderr)
            return f":{port}" in said[-1] or "says no" in said[-1]

        wait_until(is_asked, "the API server knows where to ask")
    return said[-1]


def test_the_command_does_it_as_the_chart_says(
    lab: Lab, place: CertificateTarget, chart: list[Any], run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very arguments of the chart's job, as its account."""
    (job,) = (found for found in chart if found["kind"] == "CronJob")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    words: list[str] = [*container["command"][1:], *container["args"]]
    assert container["command"][0] == "memgate"
    with lab.as_account(pod["serviceAccountName"], NAMESPACE) as account:
        monkeypatch.setenv("MEMGATE_KUBECONFIG", str(account.kubeconfig))
        first = run(*words)
        second = run(*words, "--json")

    assert "renewed, because there is none" in first.out, first.err
    assert json.loads(second.out)["renewed"] is None
    assert _bundles(lab) == [_secret(lab)["ca.crt"]] * _NUM_WEBHOOKS


def test_without_its_role_the_command_tells_what_is_missing(
    lab: Lab, chart: list[Any], run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the API server's words, and with an exit status that makes a job try again."""
    with lab.as_account("memgate-api", NAMESPACE) as account:
        monkeypatch.setenv("MEMGATE_KUBECONFIG", str(account.kubeconfig))
        ran = run(
            *("certificates", "--secret=memgate-webhook-tls", f"--namespace={NAMESPACE}"),
            *(f"--host={HOST}", "--webhook=memgate"),
        )

    assert ran.status == 1
    assert "Kubernetes' API server says: secrets" in ran.err
    assert "memgate-api" in ran.err


def test_a_key_is_made_once_and_kept_in_a_secret(
    lab: Lab,
    chart: list[Any],
    redis_url: str,
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The very arguments of the chart's job: the key is in force, and printed nowhere."""
    (job,) = (found for found in chart if found["kind"] == "Job" and "-keys-" in _name(found))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    words = [*container["command"][1:], *container["args"]]
    monkeypatch.setenv("MEMGATE_REDIS_URL", redis_url)
    with lab.as_account(pod["serviceAccountName"], NAMESPACE) as account:
        monkeypatch.setenv("MEMGATE_KUBECONFIG", str(account.kubeconfig))
        first, second = run(*words), run(*words)
    data = lab.get("secret", "memgate-controller-key", NAMESPACE)["data"]
    key = base64.b64decode(data["key"]).decode()
    queue = QueueClient(QueueSettings(redis_url=redis_url))
    ring = KeyRing(queue.store)
    held, known = ring.check(key), ring.list()
    queue.close()

    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert held is not None
    assert (held.name, held.rights, len(known)) == ("controller", Role.GATE.rights, 1)
    assert held.key_id in first.out
    assert key not in first.out + first.err
    assert "which is in force" in second.out


#: account, verb, resource, namespace; all that any of our programs may do
_ALLOWED = [
    *(
        ("controller", verb, resource, "team")
        for verb in ("list", "patch")
        for resource in (
            *(
                "pods",
                "jobs.batch",
                "jobsets.jobset.x-k8s.io",
                "rayjobs.ray.io",
                "rayclusters.ray.io",
            ),
            *("pytorchjobs.kubeflow.org", "mpijobs.kubeflow.org", "trainjobs.trainer.kubeflow.org"),
        )
    ),
    ("controller", "create", "events", "team"),
    ("controller", "list", "deployments.apps", "team"),
    ("controller", "list", "clustermemgatepolicies.memgate.dev", None),
    ("controller", "create", "leases.coordination.k8s.io", NAMESPACE),
    ("controller", "update", "leases.coordination.k8s.io/memgate-controller", NAMESPACE),
    ("webhook", "list", "memgatepolicies.memgate.dev", "team"),
    ("webhook", "create", "events", "team"),
    ("controller", "get", "configmaps", "team"),
    ("webhook", "get", "configmaps", "team"),
    ("certificates", "get", "secrets/memgate-webhook-tls", NAMESPACE),
    ("certificates", "patch", "secrets/memgate-webhook-tls", NAMESPACE),
    ("keys", "get", "secrets/memgate-controller-key", NAMESPACE),
    ("keys", "patch", "secrets/memgate-controller-key", NAMESPACE),
    *(
        ("certificates", verb, f"{kind}webhookconfigurations/memgate", None)
        for verb in ("get", "patch")
        for kind in ("validating", "mutating")
    ),
]
_REFUSED = [
    *(("controller", verb, "pods", "team") for verb in ("create", "delete", "update")),
    *(("controller", verb, "secrets", "team") for verb in ("get", "list")),
    *(("controller", verb, "configmaps", "team") for verb in ("list", "patch")),
    ("controller", "patch", "deployments.apps", "team"),
    ("controller", "create", "pods/exec", "team"),
    ("controller", "patch", "memgatepolicies.memgate.dev", "team"),
    ("controller", "update", "leases.coordination.k8s.io/other", NAMESPACE),
    ("controller", "create", "leases.coordination.k8s.io", "team"),
    ("controller", "patch", "nodes", None),
    *(("webhook", verb, "configmaps", "team") for verb in ("list", "watch", "patch")),
    ("webhook", "get", "secrets", "team"),
    *(("certificates", verb, "secrets", NAMESPACE) for verb in ("create", "list", "get")),
    ("certificates", "get", "secrets/memgate-webhook-tls", "team"),
    ("certificates", "get", "secrets/memgate-controller-key", NAMESPACE),
    ("certificates", "patch", "validatingwebhookconfigurations/other", None),
    ("keys", "get", "secrets/memgate-webhook-tls", NAMESPACE),
    ("keys", "create", "secrets", NAMESPACE),
    *((name, "get", "pods", NAMESPACE) for name in ("api", "worker", "valkey")),
    *((name, "get", "configmaps", NAMESPACE) for name in ("api", "worker", "valkey")),
]


@pytest.fixture
def may(lab: Lab, chart: list[Any]) -> Callable[..., bool]:
    """Ask the API server what an account may do."""

    def ask(account: str, verb: str, resource: str, namespace: str | None) -> bool:
        user = f"system:serviceaccount:{NAMESPACE}:memgate-{account}"
        where = (f"--namespace={namespace}",) if namespace else ()
        ran: subprocess.CompletedProcess[str] = lab.kubectl(
            "auth", "can-i", verb, resource, f"--as={user}", *where, check=False
        )
        assert ran.stdout.strip() in {"yes", "no"}, ran.stderr
        return ran.stdout.strip() == "yes"

    return ask


@pytest.fixture(scope="module")
def kinds(lab: Lab) -> None:
    """Have the API server know all kinds that the controller looks at."""
    for kind in (
        ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
        ("ray.io", "v1", "RayJob", "rayjobs"),
        ("ray.io", "v1", "RayCluster", "rayclusters"),
        ("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"),
        ("kubeflow.org", "v2beta1", "MPIJob", "mpijobs"),
        ("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs"),
    ):
        lab.install_kind(*kind)


@pytest.mark.usefixtures("kinds")
def test_an_account_may_do_what_its_program_does(may: Callable[..., bool]) -> None:
    """Each right that is needed is there."""
    missing = [right for right in _ALLOWED if not may(*right)]

    assert not missing


def test_an_account_may_do_nothing_else(may: Callable[..., bool]) -> None:
    """Whoever takes a pod over gains no more than its program had."""
    granted = [right for right in _REFUSED if may(*right)]

    assert not granted


@pytest.mark.usefixtures("kinds")
def test_the_controller_releases_with_its_own_rights(lab: Lab, chart: list[Any]) -> None:
    """It looks at every kind, lets go what nobody asks about any more, and tells of it."""
    team = lab.make_namespace("team")
    held = {"name": "held", "namespace": team, "labels": {"memgate.dev/held": "waiting"}}
    kind = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": held}
    lab.remove_webhooks()  # they would be asked, and are not there
    lab.apply(kind | {"spec": {"suspend": True, "replicatedJobs": []}})

    with (
        lab.as_account("memgate-controller", NAMESPACE) as account,
        Client("http://127.0.0.1:9", num_tries=1) as nobody,
    ):
        controller = HoldController(Cluster(account.client), nobody, AdmissionSettings())
        done = controller.go_round()
    events = lab.kubectl("get", "events", f"--namespace={team}", "--output=yaml").stdout

    assert done.num_released == 1
    assert lab.get("jobsets", "held", team)["spec"]["suspend"] is False
    assert "reason: MemgateReleased" in events
