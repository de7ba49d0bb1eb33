"""Certificates of the webhooks: who trusts them, for which names, and when they are renewed."""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from memgate_service.admission.kubernetes.issuing import (
    Issued,
    end_of,
    issue,
    merge_authorities,
    why_renew,
)

NOW = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)
LIFE = timedelta(days=90)
HOST = "memgate-webhook.memgate.svc"


def make_issued(*hosts: str, now: datetime = NOW) -> Issued:
    """Make a certificate that lives for ninety days."""
    return issue(hosts or (HOST,), now=now, life=LIFE)


def _shake_hands(issued: Issued, authority: bytes, name: str, directory: Path) -> None:
    """Have a real TLS client that trusts an authority call a server by a name."""
    certificate, key = directory / "tls.crt", directory / "tls.key"
    certificate.write_bytes(issued.certificate)
    key.write_bytes(issued.key)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    calling = ssl.create_default_context(cadata=authority.decode())
    calling.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve() -> None:
        # the client's refusal is what counts
        try:
            serving.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with calling.wrap_socket(ours, server_hostname=name):
            pass
    finally:
        ours.close()
        thread.join(10)


def test_a_strict_client_trusts_it_under_each_of_its_names(tmp_path: Path) -> None:
    """Names of a Service and addresses alike, by the strictest rules that OpenSSL has."""
    issued = make_issued(HOST, "127.0.0.1", now=datetime.now(UTC))

    for name in (HOST, "127.0.0.1"):
        _shake_hands(issued, issued.authority, name, tmp_path)


@pytest.mark.parametrize("name", ["other.memgate.svc", "memgate-webhook", "127.0.0.2"])
def test_nobody_trusts_it_under_another_name(name: str, tmp_path: Path) -> None:
    """A certificate for one Service is of no use for another."""
    issued = make_issued(HOST, "127.0.0.1", now=datetime.now(UTC))

    with pytest.raises(ssl.SSLCertVerificationError):
        _shake_hands(issued, issued.authority, name, tmp_path)


def test_an_authority_vouches_for_one_certificate_only(tmp_path: Path) -> None:
    """Two of the same day do not vouch for each other's."""
    first, second = (make_issued(now=datetime.now(UTC)) for _ in range(2))

    with pytest.raises(ssl.SSLCertVerificationError):
        _shake_hands(first, second.authority, HOST, tmp_path)


def test_an_authority_cannot_be_stretched() -> None:
    """It may sign certificates that sign nothing; its own key is nowhere."""
    issued = make_issued()

    authority = x509.load_pem_x509_certificate(issued.authority)

    limits = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (limits.ca, limits.path_length) == (True, 0)
    assert issued.key.count(b"PRIVATE KEY") == 2  # the certificate's: a begin and an end


@pytest.mark.parametrize(
    ("days", "want"),
    [(0, None), (59, None), (61, "it ends on 2026-08-02"), (91, "it ends on 2026-08-02")],
    ids=["new", "a third is left", "less is left", "nothing is left"],
)
def test_it_is_renewed_when_less_than_a_third_of_its_life_is_left(
    days: int, want: str | None
) -> None:
    """So that a month of failing renewals harms nobody."""
    assert why_renew(make_issued(), [HOST], now=NOW + timedelta(days=days)) == want


def test_it_is_renewed_when_it_is_not_as_it_should_be() -> None:
    """Whatever somebody put there: another name, another key, another authority, nothing."""
    good, other = make_issued(), make_issued()
    wrong = {
        "it is not for memgate.other.svc": (good, ["memgate.other.svc"]),
        "its key belongs to another certificate": (replace(good, key=other.key), [HOST]),
        "it was signed by another authority": (replace(good, authority=other.authority), [HOST]),
        "there is none, or it cannot be read": (replace(good, certificate=b""), [HOST]),
    }

    for want, (issued, hosts) in wrong.items():
        assert why_renew(issued, hosts, now=NOW) == want


def test_authorities_are_put_together_once_each() -> None:
    """The newest first, and none that is out of force."""
    old, new = make_issued(now=NOW - timedelta(days=200)), make_issued()
    older = make_issued(now=NOW - timedelta(days=60))

    merged = merge_authorities(
        new.authority, b"no PEM", older.authority + new.authority + old.authority, now=NOW
    )

    assert merged == new.authority + older.authority


def test_the_longest_name_of_a_service_fits() -> None:
    """A common name may have 64 characters; a Service and its namespace up to 131."""
    host = f"{'a' * 63}.{'b' * 63}.svc"

    assert why_renew(make_issued(host), [host], now=NOW) is None


def test_it_tells_when_it_ends() -> None:
    """For whoever reads the log."""
    assert end_of(make_issued().certificate) == NOW + LIFE
