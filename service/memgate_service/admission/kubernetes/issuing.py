"""Hosts and a time -> a certificate for them, and the authority that signed it.

An authority signs one certificate, and its key is thrown away: nobody can sign another. Renewing
makes new ones of both. Values in, values out; where they are kept is in ``certificates``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: a certificate is valid from a little before it was made: clocks differ
_SKEW = timedelta(minutes=5)

#: the share of its lifetime that must be left; with less, it is renewed
_DUE_SHARE = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A certificate, its key, and the authority that signed it, all PEM."""

    certificate: bytes
    key: bytes
    authority: bytes


def issue(hosts: Sequence[str], *, now: datetime, life: timedelta) -> Issued:
    """Make a certificate for these names or addresses, and the authority that signs it."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = _name(f"memgate webhook authority {now:%Y-%m-%d}")
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), now, life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(_identifier(authority_key), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _builder(_name(hosts[0]), authority_name, key.public_key(), now, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_names(hosts)), critical=False)
        .add_extension(_identifier(key), critical=False)
        .add_extension(authority_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return Issued(
        certificate=_pem(certificate),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        authority=_pem(authority),
    )


def why_renew(issued: Issued, hosts: Sequence[str], *, now: datetime) -> str | None:
    """Return what is wrong with a certificate, in a few words; None if nothing is."""
    try:
        certificate = x509.load_pem_x509_certificate(issued.certificate)
        authorities = x509.load_pem_x509_certificates(issued.authority)
        key = serialization.load_pem_private_key(issued.key, None)
    except ValueError:
        return "there is none, or it cannot be read"
    if key.public_key() != certificate.public_key():
        return "its key belongs to another certificate"
    if not any(_has_signed(authority, certificate) for authority in authorities):
        return "it was signed by another authority"
    if not set(_names(hosts)) <= set(_names_of(certificate)):
        return f"it is not for {', '.join(hosts)}"
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if end - now < (end - begin) * _DUE_SHARE:
        return f"it ends on {end:%Y-%m-%d}"
    return None


def merge_authorities(*bundles: bytes, now: datetime) -> bytes:
    """Combine authorities, each once, in order, without those that have expired.

    What cannot be read is left out: a webhook configuration may contain anything.
    """
    found: dict[bytes, None] = {}
    for bundle in bundles:
        try:
            certificates = x509.load_pem_x509_certificates(bundle)
        except ValueError:
            continue
        for certificate in certificates:
            if certificate.not_valid_after_utc > now:
                found[_pem(certificate)] = None
    return b"".join(found)


def end_of(certificate: bytes) -> datetime:
    """Return when a certificate expires."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    now = now.astimezone(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
    )


def _name(text: str) -> x509.Name:
    # a common name may have at most 64 characters; only the alternative names count
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _identifier(key: ec.EllipticCurvePrivateKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key.public_key())


def _usage(**used: bool) -> x509.KeyUsage:
    unused = dict.fromkeys(
        (
            *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
            *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
        ),
        False,
    )
    return x509.KeyUsage(**(unused | used))


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


def _names_of(certificate: x509.Certificate) -> list[x509.GeneralName]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return list(found.value)


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
