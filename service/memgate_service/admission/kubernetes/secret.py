"""An existing Secret -> its values, read, and changed only if nobody changed it since.

Needs ``get`` and ``patch`` on it, by name. It is never created here: the right to create Secrets
cannot be limited to one name.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from memgate_service.admission.kubernetes.cluster import Cluster, Resource
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_object
from memgate_service.admission.kubernetes.patches import Patch

_SECRETS = Resource("v1", "secrets")


class Secret:
    """One Secret."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._document: JsonObject = {}

    def read(self) -> dict[str, bytes]:
        """Return what is in it.

        Raises:
            ClusterError: if there is none, or it may not be read.
        """
        self._document = self._cluster.read(_SECRETS, self._name, self._namespace)
        data = as_object(self._document.get("data"))
        return {key: base64.b64decode(value) for key, value in data.items()}

    def write(self, values: Mapping[str, bytes]) -> None:
        """Replace all of its values.

        Raises:
            ClusterError: with status 409 if it has changed since it was read.
        """
        data = {key: base64.b64encode(value).decode() for key, value in values.items()}
        patch: Patch = [unchanged(self._document), {"op": "add", "path": "/data", "value": data}]
        self._cluster.patch(_SECRETS, self._document, patch)


def unchanged(document: JsonObject) -> dict[str, Any]:
    """Return a step that makes a patch fail with 409 if the object has changed."""
    version = as_object(document.get("metadata")).get("resourceVersion")
    return {"op": "replace", "path": "/metadata/resourceVersion", "value": version}
