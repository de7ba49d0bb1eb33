"""A Secret and two webhook configurations -> a certificate that the API server trusts, kept fresh.

For clusters without cert-manager. The Secret holds what the webhooks serve with (``tls.crt``,
``tls.key``) and the authority that signed it (``ca.crt``); the configurations hold the latter as
``caBundle``. Renewing makes a new certificate and a new authority (``issuing``).

However this is interrupted, and however often it runs, twice at the same time included, the API
server trusts the certificate that the webhooks present:

- the API server is given a new authority *before* the Secret has the certificate it signed;
- it keeps the authorities that it knew until they expire, since pods take a minute or two to see a
  new Secret;
- both are changed only if nobody else changed them since they were read; otherwise it starts over.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from memgate_service.admission.kubernetes.cluster import Cluster, ClusterError, Resource
from memgate_service.admission.kubernetes.issuing import (
    Issued,
    end_of,
    issue,
    merge_authorities,
    why_renew,
)
from memgate_service.admission.kubernetes.json_parts import as_list, as_object
from memgate_service.admission.kubernetes.patches import Patch
from memgate_service.admission.kubernetes.secret import Secret, unchanged

#: how often it starts over because the objects were changed in the meantime
_NUM_TRIES = 5

_CONFIGURATIONS = (
    Resource("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"),
    Resource("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations"),
)

#: where the Secret has them
_CERTIFICATE, _KEY, _AUTHORITY = "tls.crt", "tls.key", "ca.crt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What was done, and until when the certificate is good."""

    renewed: str | None
    """Why the certificate was renewed; None if it was not."""

    changed: tuple[str, ...]
    """Webhook configurations that were given an authority."""

    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateTarget:
    """Where a certificate is kept, which hosts it is for, and which webhooks must trust it."""

    namespace: str
    secret: str
    hosts: tuple[str, ...]
    webhook: str
    """Name of the validating and of the mutating webhook configuration."""


class CertificateKeeper:
    """Keeps one certificate fresh; needs ``get`` and ``patch`` on three objects, by name."""

    def __init__(
        self,
        cluster: Cluster,
        target: CertificateTarget,
        now: Callable[[], datetime],
        life: timedelta,
    ) -> None:
        self._secret = Secret(cluster, target.namespace, target.secret)
        self._webhooks = _Webhooks(cluster, target.webhook)
        self._target = target
        self._now = now
        self._life = life

    def keep(self, *, force: bool = False) -> Kept:
        """Renew if it is time, or if the certificate is not as it should be.

        Args:
            force: renew in any case, and have the API server trust only the new authority: for a
                key that may have leaked.

        Raises:
            ClusterError: the API server cannot be reached, or refuses.
        """
        for tries_left in reversed(range(_NUM_TRIES)):
            try:
                return self._try(force)
            except ClusterError as error:
                if error.status != 409 or not tries_left:
                    raise
        raise AssertionError("unreachable")

    def _try(self, force: bool) -> Kept:
        hosts = self._target.hosts
        held = read_issued(self._secret.read())
        now = self._now()
        why = "it was asked for" if force else why_renew(held, hosts, now=now)
        if why is None:
            changed = self._webhooks.trust(held.authority, now=now)
            return Kept(renewed=None, changed=changed, end=end_of(held.certificate))
        issued = issue(hosts, now=now, life=self._life)
        changed = self._webhooks.trust(issued.authority, now=now, only=force)
        self._secret.write(
            {_CERTIFICATE: issued.certificate, _KEY: issued.key, _AUTHORITY: issued.authority}
        )
        return Kept(renewed=why, changed=changed, end=end_of(issued.certificate))


def read_issued(values: Mapping[str, bytes]) -> Issued:
    """Return the certificate in a Secret's values; what is missing is empty."""
    return Issued(
        certificate=values.get(_CERTIFICATE, b""),
        key=values.get(_KEY, b""),
        authority=values.get(_AUTHORITY, b""),
    )


class _Webhooks:
    """The two webhook configurations of a name; one that does not exist is skipped."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    def trust(self, authority: bytes, *, now: datetime, only: bool = False) -> tuple[str, ...]:
        """Make all of their webhooks trust an authority; return what had to be changed."""
        return tuple(
            resource.plural
            for resource in _CONFIGURATIONS
            if self._trust_in(resource, authority, now, only)
        )

    def _trust_in(self, resource: Resource, authority: bytes, now: datetime, only: bool) -> bool:
        try:
            configuration = self._cluster.read(resource, self._name)
        except ClusterError as error:
            if error.status == 404:
                return False
            raise
        patch: Patch = []
        for index, webhook in enumerate(as_list(configuration.get("webhooks"))):
            given = as_object(as_object(webhook).get("clientConfig")).get("caBundle")
            known = base64.b64decode(given or "")
            bundle = merge_authorities(authority, b"" if only else known, now=now)
            if bundle != known:
                pointer = f"/webhooks/{index}/clientConfig/caBundle"
                text = base64.b64encode(bundle).decode()
                patch.append({"op": "add", "path": pointer, "value": text})
        if patch:
            self._cluster.patch(resource, configuration, [unchanged(configuration), *patch])
        return bool(patch)
