"""``memgate doctor --kubernetes``: what is missing in a cluster is found before a user notices."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from memgate_service.admission.kubernetes.cluster import ClusterError, Resource
from memgate_service.admission.kubernetes.doctor import examine
from memgate_service.admission.kubernetes.settings import AdmissionSettings


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

    def __init__(self, *, ca: str, timeout: int = 1, is_ready: bool = True, node: str = "") -> None:
        self._webhook = {
            "clientConfig": {
                "caBundle": ca,
                "service": {"name": "memgate-webhook", "namespace": "memgate"},
            },
            "timeoutSeconds": timeout,
        }
        self._is_ready = is_ready
        self._node = node

    def list(self, resource: Resource) -> list[dict[str, Any]]:
        """Return configurations, or nodes."""
        if resource.plural == "nodes":
            return [{"metadata": {"labels": {"nvidia.com/gpu.product": self._node}}}]
        verb = resource.plural.removesuffix("ingwebhookconfigurations")
        name = {"validat": "validate.memgate.dev", "mutat": "mutate.memgate.dev"}[verb]
        return [{"webhooks": [self._webhook | {"name": name}]}]

    def read(self, resource: Resource, name: str, namespace: str) -> dict[str, Any]:
        """Return endpoints."""
        if not self._is_ready:
            raise ClusterError("no such endpoints", 404)
        return {"subsets": [{"addresses": [{"ip": "10.0.0.1"}]}]}


def _wrong(cluster: FakeCluster, **settings: Any) -> str:
    checks = examine(cluster, AdmissionSettings(**settings))  # type: ignore[arg-type]
    return "\n".join(check.line for check in checks if check.wrong)


def test_what_is_right_is_not_complained_of() -> None:
    """A certificate that lasts, pods that are ready, timeouts that add up to less than 5 s."""
    assert _wrong(FakeCluster(ca=_certificate(10), node="Tesla-T4"), admission_gpus="t4") == ""


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
