"""A real etcd and a real kube-apiserver on loopback: what webhooks, roles and controllers meet.

    with running_lab(directory) as lab:
        lab.kubectl("create", "namespace", "team")
        lab.install_webhook("https://127.0.0.1:9443", lab.certificate.authority)

RBAC is on; ``lab.client`` and ``lab.kubectl`` are the administrator's, ``lab.as_account`` gives
those of a service account. There is no controller manager, no scheduler and no kubelet: a Job
makes no pods, a deleted namespace stays, a service account's token must be asked for.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from kubernetes import client as kube
from kubernetes.config.kube_config import new_client_from_config

from memgate_service.admission.kubernetes.issuing import Issued, issue
from tests.kube_apiserver import find_apiserver
from tests.parts import find_part, part_environment
from tests.running import PortTakenError, free_port, retry_taken, wait_until

#: the token of the administrator
_ADMIN = "admin-token"

#: what a kind says that keeps whatever it is given
_ANY_FIELDS = "x-kubernetes-preserve-unknown-fields"

_KUBECTL = Path(sys.executable).parent / "kubectl"

#: what the API server sends to a webhook of ``install_webhook`` unless told otherwise
_EVERYTHING = [
    {
        "apiGroups": ["", "batch", "apps"],
        "apiVersions": ["v1"],
        "resources": ["pods", "jobs", "cronjobs", "deployments", "statefulsets"],
        "operations": ["CREATE", "UPDATE"],
    }
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """An API server that runs, and how to talk to it."""

    directory: Path
    url: str
    authority: Path
    """File with who signed the API server's own certificate."""

    certificate: Issued
    """For a webhook on 127.0.0.1 or localhost; its files are ``tls.crt`` and ``tls.key``."""

    kubeconfig: Path
    client: kube.ApiClient

    @property
    def tls_certificate(self) -> Path:
        """File with the webhook's certificate."""
        return self.directory / "tls.crt"

    @property
    def tls_key(self) -> Path:
        """File with its key."""
        return self.directory / "tls.key"

    def kubectl(
        self, *arguments: str | Path, given: Any = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl; ``given`` is its standard input: text, an object, or a list of objects.

        Raises:
            AssertionError: it failed, and ``check`` was not put off; with what it said.
        """
        ran = subprocess.run(
            [_KUBECTL, *arguments],
            input=given if isinstance(given, str) else _as_yaml(given),
            env=os.environ | {"KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or ran.returncode == 0, ran.stderr
        return ran

    def apply(self, *objects: Any) -> None:
        """Make these objects, or change them."""
        self.kubectl("apply", "--filename=-", given=list(objects))

    def get(self, kind: str, name: str, namespace: str = "default") -> Any:
        """Return an object as it is now."""
        ran = self.kubectl("get", kind, name, f"--namespace={namespace}", "--output=json")
        return json.loads(ran.stdout)

    def install_webhook(
        self,
        url: str,
        ca: bytes,
        *,
        failure_policy: str = "Ignore",
        timeout: int = 5,
        kind: str = "Validating",
        path: str | None = None,
        rules: list[dict[str, Any]] | None = None,
        **more: Any,
    ) -> None:
        """Have the API server ask a webhook, about namespaces labelled ``webhook: yes``.

        Args:
            url: where it listens, without a path.
            ca: who vouches for its certificate, PEM.
            failure_policy: ``Ignore`` or ``Fail``.
            timeout: in seconds.
            kind: ``Validating`` or ``Mutating``.
            path: ours, by kind, unless it is given.
            rules: pods, jobs and the like, unless they are given.
            more: other fields of the webhook.
        """
        verb = {"Validating": "validate", "Mutating": "mutate"}[kind]
        path = path or f"/webhooks/kubernetes/{verb}"
        webhook = {
            "name": f"{verb}.memgate.dev",
            "clientConfig": {"url": url + path, "caBundle": base64.b64encode(ca).decode()},
            "rules": rules or _EVERYTHING,
            "failurePolicy": failure_policy,
            "timeoutSeconds": timeout,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": {"matchLabels": {"webhook": "yes"}},
            **more,
        }
        self.apply(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": f"{kind}WebhookConfiguration",
                "metadata": {"name": f"lab-{verb}"},
                "webhooks": [webhook],
            }
        )

    def remove_webhooks(self) -> None:
        """Have it ask nobody any more."""
        for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"):
            self.kubectl("delete", kind, "--all")

    def make_namespace(self, name: str, **labels: str) -> str:
        """Make a namespace; ``webhook="yes"`` as a label makes ``install_webhook`` matter."""
        labels = {"kubernetes.io/metadata.name": name} | labels  # servers from 1.21 on set it
        metadata = {"name": name, "labels": labels}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        return name

    def install_kind(
        self,
        group: str,
        version: str,
        kind: str,
        plural: str,
        *,
        scope: str = "Namespaced",
        status: bool = False,
        fields: dict[str, Any] | None = None,
    ) -> None:
        """Make a kind of somebody else's known, with whatever fields its objects have.

        Args:
            group: as in ``apiVersion``.
            version: as in ``apiVersion``.
            kind: its name.
            plural: its name in URLs.
            scope: ``Namespaced`` or ``Cluster``.
            status: whether ``status`` is a part of its own, which nothing else changes.
            fields: the schemas of its fields, if others are not to be kept.
        """
        schema: dict[str, Any] = {"type": "object"}
        schema |= {"properties": fields} if fields else {_ANY_FIELDS: True}
        known = {"name": version, "served": True, "storage": True}
        known |= {"subresources": {"status": {}}} if status else {}
        name = f"{plural}.{group}"
        self.apply(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": name},
                "spec": {
                    "group": group,
                    "scope": scope,
                    "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                    "versions": [known | {"schema": {"openAPIV3Schema": schema}}],
                },
            }
        )
        self.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=30s")

    @contextmanager
    def as_account(self, name: str, namespace: str = "default") -> Iterator[Lab]:
        """Talk to it as a service account, which must be there, with its rights and no others."""
        core = kube.CoreV1Api(self.client)
        request = kube.AuthenticationV1TokenRequest(
            spec=kube.V1TokenRequestSpec(audiences=["https://kubernetes.default.svc"])
        )
        status = core.create_namespaced_service_account_token(name, namespace, request).status
        assert status is not None
        path = self.directory / f"kubeconfig-{namespace}-{name}"
        _write_kubeconfig(path, self.url, self.authority, str(status.token))
        with new_client_from_config(str(path)) as client:
            yield Lab(
                directory=self.directory,
                url=self.url,
                authority=self.authority,
                certificate=self.certificate,
                kubeconfig=path,
                client=client,
            )


@contextmanager
def running_lab(directory: Path) -> Iterator[Lab]:
    """Run an API server of one's own as long as the block runs; skip where there is none."""
    program, etcd = find_apiserver(), find_part("etcd")
    if program is None:
        pytest.skip("kube-apiserver is not here: make kube-apiserver")
    if etcd is None:
        pytest.skip("etcd is not here: make parts")
    webhook, server = (_issue("127.0.0.1", "localhost") for _ in range(2))
    _write_certificate(directory, "tls", webhook)
    _write_certificate(directory, "server", server)
    _write_account_key(directory)
    (directory / "tokens.csv").write_text(f'{_ADMIN},admin,admin,"system:masters"\n')
    kubeconfig, authority = directory / "kubeconfig", directory / "server-ca.crt"
    with ExitStack() as stack:
        url = retry_taken(lambda: _start(stack, program, etcd, directory))
        _write_kubeconfig(kubeconfig, url, authority, _ADMIN)
        client = stack.enter_context(new_client_from_config(str(kubeconfig)))
        lab = Lab(
            directory=directory,
            url=url,
            authority=authority,
            certificate=webhook,
            kubeconfig=kubeconfig,
            client=client,
        )
        wait_until(lambda: _is_ready(lab), f"the API server is ready, see {directory}")
        yield lab


def _start(stack: ExitStack, program: Path, etcd: Path, directory: Path) -> str:
    """Start both; return the API server's URL.

    Raises:
        PortTakenError: another program was faster; both are ended.
    """
    store, port = f"http://127.0.0.1:{free_port()}", free_port()
    with ExitStack() as starting:
        for command in (
            _etcd(etcd, directory, store),
            _apiserver(program, directory, store, port),
        ):
            log = directory / f"{Path(command[0]).name}.log"
            process = starting.enter_context(_running(command, log))
            _wait_until_it_listens(process, log, port if command[0] == str(program) else store)
        stack.push(starting.pop_all())
    return f"https://127.0.0.1:{port}"


def _wait_until_it_listens(process: subprocess.Popen[bytes], log: Path, where: int | str) -> None:
    port = int(str(where).rpartition(":")[2])

    def is_settled() -> bool:
        if process.poll() is not None:
            return True
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    wait_until(is_settled, f"it listens, see {log}")
    if process.poll() is not None:
        said = log.read_text()
        raise PortTakenError(said) if "address already in use" in said else AssertionError(said)


def _is_ready(lab: Lab) -> bool:
    return lab.kubectl("get", "--raw=/readyz", check=False).stdout == "ok"


def _etcd(program: Path, directory: Path, url: str) -> list[str]:
    peer = f"http://127.0.0.1:{free_port()}"
    return [
        *(str(program), f"--data-dir={directory / 'etcd'}", "--unsafe-no-fsync"),
        *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
        *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
        f"--initial-cluster=default={peer}",
    ]


def _apiserver(program: Path, directory: Path, store: str, port: int) -> list[str]:
    return [
        *(str(program), f"--etcd-servers={store}", f"--secure-port={port}"),
        *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"),
        *(f"--tls-cert-file={directory / 'server.crt'}",),
        *(f"--tls-private-key-file={directory / 'server.key'}",),
        *("--authorization-mode=RBAC", f"--token-auth-file={directory / 'tokens.csv'}"),
        *(f"--service-account-key-file={directory / 'account.pub'}",),
        *(f"--service-account-signing-key-file={directory / 'account.key'}",),
        *("--service-account-issuer=https://kubernetes.default.svc",),
        # nobody is there to make the default accounts that it would wait for
        *("--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none"),
        *("--service-cluster-ip-range=10.0.0.0/24", f"--cert-dir={directory / 'certs'}"),
    ]


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with ExitStack() as stack, log.open("wb") as output:
        process = subprocess.Popen(
            command, env=part_environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        stack.callback(process.wait, 30)
        stack.callback(process.terminate)
        yield process
        assert process.poll() is None, f"{Path(command[0]).name} ended by itself, see {log}"


def _issue(*hosts: str) -> Issued:
    return issue(hosts, now=datetime.now(UTC), life=timedelta(days=1))


def _write_certificate(directory: Path, name: str, issued: Issued) -> None:
    (directory / f"{name}.crt").write_bytes(issued.certificate)
    (directory / f"{name}.key").write_bytes(issued.key)
    (directory / f"{name}-ca.crt").write_bytes(issued.authority)


def _write_account_key(directory: Path) -> None:
    """Make the key that tokens of service accounts are signed with."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (directory / "account.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    (directory / "account.pub").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


def _write_kubeconfig(path: Path, url: str, authority: Path, token: str) -> None:
    cluster = {"server": url, "certificate-authority": str(authority)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "user"}}],
        "current-context": "lab",
    }
    path.write_text(yaml.safe_dump(document))


def _as_yaml(given: Any) -> str | None:
    if given is None:
        return None
    return yaml.safe_dump_all(given if isinstance(given, list) else [given])
