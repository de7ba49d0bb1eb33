"""``memgate doctor --kubernetes``: what is missing in a cluster is found before a user notices."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from memgate.client.errors import RefusedError
from memgate_service.admission.kubernetes.cluster import ClusterError, Resource
from memgate_service.admission.kubernetes.doctor import examine
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from tests.running import free_port


def _certificate(days: int) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "memgate")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=100))
        .not_valid_after(now + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    return base64.b64encode(made.public_bytes(serialization.Encoding.PEM)).decode()


class FakeCluster:
    """Answers as an API server would."""

    def __init__(
        self,
        *,
        ca: str,
        timeout: int = 1,
        is_ready: bool = True,
        node: str = "",
        url: str = "",
        secrets: dict[str, dict[str, str]] | None = None,
        env: dict[str, Any] | None = None,
    ) -> None:
        where = {"service": {"name": "memgate-webhook", "namespace": "memgate"}}
        self._webhook = {
            "clientConfig": {"caBundle": ca, **({"url": url} if url else where)},
            "timeoutSeconds": timeout,
        }
        self._is_ready = is_ready
        self._node = node
        self._secrets = secrets
        self._env = env or {}
        self.refuses_deployments = False
        self.policies: list[Any] | None = None

    def list(self, resource: Resource, namespace: str = "") -> list[dict[str, Any]]:
        """Return configurations, nodes or our programs."""
        if resource.plural == "nodes":
            labels = {"nvidia.com/gpu.product": self._node} if self._node else {}
            return [{"metadata": {"labels": labels}}]
        if resource.plural == "deployments":
            assert namespace == "memgate"
            if self.refuses_deployments:
                raise ClusterError("not allowed", 403)
            return [] if self._secrets is None else [self._program(), {"metadata": {"name": "x"}}]
        if resource.plural.endswith("policies"):
            if self.policies is None:
                raise ClusterError("no such kind", 404)
            return self.policies if resource.plural.startswith("cluster") else []
        verb = resource.plural.removesuffix("ingwebhookconfigurations")
        name = {"validat": "validate.memgate.dev", "mutat": "mutate.memgate.dev"}[verb]
        return [{"webhooks": [self._webhook | {"name": name}]}]

    def _program(self) -> dict[str, Any]:
        key = {"secretKeyRef": {"name": "key", "key": "key"}}
        env: dict[str, Any] = {
            "MEMGATE_TLS_CERTIFICATE": {"value": "/etc/memgate/tls/tls.crt"},
            "MEMGATE_API_KEY": {"valueFrom": key},
            "OTHER": {"value": "1"},
        } | self._env
        container = {"env": [{"name": name, **said} for name, said in env.items()]}
        volumes = [{"emptyDir": {}}, {"secret": {"secretName": "tls"}}]
        spec = {"template": {"spec": {"containers": [container], "volumes": volumes}}}
        return {"metadata": {"name": "memgate", "namespace": "memgate"}, "spec": spec}

    def read(self, resource: Resource, name: str, namespace: str) -> dict[str, Any]:
        """Return endpoints, or a Secret."""
        if resource.plural == "secrets":
            if self._secrets is None or name not in self._secrets:
                raise ClusterError(f'secrets "{name}" not found', 404)
            return {"data": self._secrets[name]}
        if not self._is_ready:
            raise ClusterError("no such endpoints", 404)
        return {"subsets": [{"addresses": [{"ip": "10.0.0.1"}]}]}


def _wrong(cluster: FakeCluster, **settings: Any) -> str:
    checks = examine(cluster, AdmissionSettings(**settings))  # type: ignore[arg-type]
    return "\n".join(check.line for check in checks if check.wrong)


def test_what_is_right_is_not_complained_of() -> None:
    """A certificate that lasts, pods that are ready, timeouts that add up to less than 5 s."""
    ca = _certificate(10)
    assert _wrong(FakeCluster(ca=ca, node="Tesla-T4"), admission_gpus="t4") == ""
    secrets = {"tls": {"tls.crt": ca}, "key": {"key": base64.b64encode(b"mg_1").decode()}}
    gpus = {"MEMGATE_ADMISSION_GPUS": {"value": "Tesla-T4,a100-80"}}
    cluster = FakeCluster(ca=ca, node="Tesla-T4", secrets=secrets, env=gpus)
    assert _wrong(cluster) == ""
    cluster.refuses_deployments = True  # what one may not look at is not complained of either
    assert _wrong(cluster) == ""


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """Certificates, pods, a card that nobody named, a policy that cannot be read."""
    policy = tmp_path / "policy.json"
    policy.write_text("{")
    cluster = FakeCluster(ca="", timeout=5, is_ready=False, node="NVIDIA-H100-PCIe")
    said = _wrong(cluster, admission_gpus="t4", admission_policy=policy)

    assert "validate.memgate.dev: certificate: the API server is not told whom to trust" in said
    assert "no such endpoints" in said
    assert "people may wait 15 s" in said
    assert "NVIDIA-H100-PCIe is not among the GPUs of the settings" in said
    assert "the policy cannot be read" in said


def test_a_certificate_that_has_ended_is_named() -> None:
    """Or what is not a certificate at all."""
    assert "certificate: it ended on " in _wrong(FakeCluster(ca=_certificate(-1)))
    assert "caBundle is not a certificate" in _wrong(FakeCluster(ca="AAAA"))


@pytest.mark.parametrize(
    ("tls", "want"),
    [
        ({}, "the Secret memgate/tls has no tls.crt"),
        ({"tls.crt": "AAAA"}, "is not a certificate"),
        ({"tls.crt": _certificate(-1)}, "the one in memgate/tls ended"),
        ({"tls.crt": _certificate(20)}, "caBundle does not vouch for the one in memgate/tls"),
    ],
    ids=["none", "no certificate", "ended", "another authority"],
)
def test_the_certificate_that_webhooks_present_is_looked_at(tls: Any, want: str) -> None:
    """It is another one than that which the API server trusts."""
    key = {"key": base64.b64encode(b"mg_1").decode()}
    cluster = FakeCluster(ca=_certificate(10), secrets={"tls": tls, "key": key})
    assert want in _wrong(cluster)


@pytest.mark.parametrize(
    ("secrets", "env", "want"),
    [
        ({"key": {"key": ""}}, {}, "'key' in the Secret memgate/key is empty"),
        (
            {"key": {"key": base64.b64encode(b" \n").decode()}},
            {},
            "'key' in the Secret memgate/key is empty",
        ),
        ({}, {}, 'secrets "key" not found'),
        ({}, {"MEMGATE_API_KEY": {"value": ""}}, "MEMGATE_API_KEY is empty"),
    ],
    ids=["empty", "blank", "no Secret", "in the settings"],
)
def test_an_empty_key_is_named(secrets: Any, env: Any, want: str) -> None:
    """With it the controller is told nothing."""
    ca = _certificate(10)
    cluster = FakeCluster(ca=ca, secrets={"tls": {"tls.crt": ca}} | secrets, env=env)
    assert f"the key of memgate: {want}" in _wrong(cluster)


def test_a_wrong_gpu_name_is_named() -> None:
    """In the cluster's own settings, which stop its pods from starting; and on its nodes."""
    ca = _certificate(10)
    key = {"key": base64.b64encode(b"mg_1").decode()}
    secrets = {"tls": {"tls.crt": ca}, "key": key}
    gpus = {"MEMGATE_ADMISSION_GPUS": {"value": "t44,t4"}}
    said = _wrong(FakeCluster(ca=ca, secrets=secrets, env=gpus, node="NVIDIA-Z9000"))
    assert "admission.gpus: gpu is 't44': it is not in the catalogue; did you mean 't4'?" in said
    assert "NVIDIA-Z9000 is not in the catalogue" in said


def test_a_webhook_outside_of_the_cluster_is_connected_to() -> None:
    """As the API server does it."""
    unused_port = free_port()
    url = f"https://127.0.0.1:{unused_port}/webhooks/kubernetes/validate"
    said = _wrong(FakeCluster(ca=_certificate(10), url=url))
    assert f"service: 127.0.0.1:{unused_port} cannot be reached" in said


def test_a_policy_about_what_is_never_asked_is_named() -> None:
    """With the conditions of Kubernetes 1.28, webhooks hear only of what has our annotation."""
    cluster = FakeCluster(ca=_certificate(10))
    cluster._webhook["matchConditions"] = [{"name": "annotated"}]
    assert _wrong(cluster) == ""
    cluster.policies = [
        {"metadata": {"name": "mild"}, "spec": {"mode": "warn"}},
        {"metadata": {"name": "main"}, "spec": {"rules": [{"on": {"undescribed": "reject"}}]}},
    ]
    said = _wrong(cluster)
    assert "what the API server asks about: not about what is undescribed, of which" in said
    assert "ClusterMemgatePolicy/main says more than admit; set admission.matchConditions" in said


class _Client:
    """A server that takes no key."""

    def gpus(self) -> list[Any]:
        """Refuse."""
        raise RefusedError("the key is not valid", code="UNAUTHORIZED", status=401)


def test_the_api_is_asked_if_it_is_known_where_it_is() -> None:
    """With the key that is set."""
    cluster = FakeCluster(ca=_certificate(10), node="Tesla-T4")
    checks = list(examine(cluster, AdmissionSettings(), _Client()))  # type: ignore[arg-type]
    assert "WRONG  memgate answers, and takes the key: the key is not valid" in checks[-1].line
