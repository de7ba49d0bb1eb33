"""A Kubernetes cluster, from inside a pod or with a kubeconfig; its refusals as one sentence.

Needs ``pip install 'memgate[kubernetes]'``: import this where it is used, not at the top of a
module that the command line always loads.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from kubernetes import client as kube
from kubernetes import config
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from memgate.errors import InputError, MemgateError

#: lists are merged by the names in them, so that whatever else is there stays
MERGE = "application/strategic-merge-patch+json"


class ClusterError(MemgateError):
    """The Kubernetes API did not do what was asked."""

    code = "CLUSTER_REFUSED"


@contextmanager
def open_cluster() -> Iterator[kube.ApiClient]:
    """Talk to the cluster that this pod is in, or that the kubeconfig names.

    Raises:
        InputError: it is neither in a pod nor is there a kubeconfig.
        ClusterError: in place of what the client raises within the block.
    """
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config()
        else:
            config.load_kube_config(os.environ.get("KUBECONFIG"))
    except config.ConfigException as error:
        raise InputError(f"there is no cluster to talk to: {error}") from None
    with kube.ApiClient() as api, refusals():
        yield api


@contextmanager
def refusals() -> Iterator[None]:
    """Tell what the API server said, in its own words where it had any."""
    try:
        yield
    except ApiException as error:
        raise ClusterError(_sentence(error)) from None
    except HTTPError as error:
        reason = getattr(error, "reason", error)
        raise ClusterError(f"the Kubernetes API cannot be reached: {reason}") from None


class SecretFile:
    """A Secret that is there, by name: read, and changed only if it is still what was read.

    Needs ``get`` and ``patch`` on it: a right to make Secrets cannot be bound to a name.
    """

    def __init__(self, api: kube.ApiClient, namespace: str, name: str) -> None:
        self._core = kube.CoreV1Api(api)
        self._namespace = namespace
        self._name = name
        self._version: str | None = None

    def read(self) -> dict[str, bytes]:
        """Return what is in it."""
        secret = self._core.read_namespaced_secret(self._name, self._namespace)
        assert secret.metadata is not None
        self._version = secret.metadata.resource_version
        data = secret.data or {}
        return {key: base64.b64decode(value) for key, value in data.items()}

    def write(self, values: Mapping[str, bytes]) -> None:
        """Put these into it.

        Raises:
            ApiException: 409, somebody has changed it since it was read.
        """
        data = {key: base64.b64encode(value).decode() for key, value in values.items()}
        body: dict[str, Any] = {"metadata": {"resourceVersion": self._version}, "data": data}
        self._core.patch_namespaced_secret(self._name, self._namespace, body, _content_type=MERGE)


def _sentence(error: ApiException) -> str:
    try:
        message = msgspec.json.decode(error.body or "", type=dict[str, Any])["message"]
    except (KeyError, msgspec.DecodeError):
        message = error.reason
    return f"the Kubernetes API answered {error.status}: {message}"
