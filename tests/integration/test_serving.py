"""A certificate that is renewed while the service runs is taken up, without a restart."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from memgate_service.admission.kubernetes.issuing import issue
from tests.running import serving, wait_until


def _write(directory: Path, days: int) -> int:
    """Write a certificate; return its number."""
    issued = issue(("localhost",), now=datetime.now(UTC), life=timedelta(days=days))
    (directory / "tls.crt").write_bytes(issued.certificate)
    (directory / "tls.key").write_bytes(issued.key)
    return x509.load_pem_x509_certificate(issued.certificate).serial_number


def _shown(port: int) -> int | None:
    """Return the number of the certificate that is shown to a new client."""
    try:
        text = ssl.get_server_certificate(("127.0.0.1", port), timeout=5)
    except OSError:
        return None
    return x509.load_pem_x509_certificate(text.encode()).serial_number


def _log(directory: Path) -> str:
    return (directory / "log").read_text()


@pytest.mark.parametrize("serve", ["all", "webhooks"])
def test_a_renewed_certificate_is_taken_up(tmp_path: Path, serve: str) -> None:
    """Even if for a moment only half of it is there."""
    first = _write(tmp_path, 1)
    settings = {
        "serve": serve,
        "tls_certificate": str(tmp_path / "tls.crt"),
        "tls_key": str(tmp_path / "tls.key"),
        "redis_url": "redis://127.0.0.1:1/0",
    }
    with serving(tmp_path / "log", grace_seconds=30, **settings) as served:
        port = served.port
        assert served.url.startswith("https://")
        assert _shown(port) == first
        key = (tmp_path / "tls.key").read_bytes()
        (tmp_path / "tls.key").write_bytes(b"half of a key")
        wait_until(lambda: '"error"' in _log(tmp_path), "it is seen to be broken")
        assert _shown(port) == first
        _write(tmp_path, 3)
        (tmp_path / "tls.key").write_bytes(key)
        wait_until(lambda: "KEY_VALUES_MISMATCH" in _log(tmp_path), "the pair does not match")
        assert _shown(port) == first
        second = _write(tmp_path, 2)
        wait_until(lambda: _shown(port) == second, "the second is shown")
