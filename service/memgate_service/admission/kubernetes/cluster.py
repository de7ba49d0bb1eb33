"""The door to Kubernetes' own API: reads objects, lists them, patches them, records events.

Uses only those parts of the official client that work for every kind: an object is JSON here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memgate.errors import Fault, MemgateError
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_list, as_object
from memgate_service.admission.kubernetes.patches import Patch

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

#: for one call
_TIMEOUT_SECONDS = 5.0

#: who the API server says has written what we apply
FIELD_MANAGER = "memgate"

#: objects in one page of a list
_PAGE = 500


#: statuses of an API server that does not let us in: the operator must grant us the right
_NOT_ALLOWED = (401, 403)


class ClusterError(MemgateError):
    """The API server cannot be reached, or refuses; ``status`` is 0 if there was no answer."""

    code = "CLUSTER_UNREACHABLE"

    def __init__(self, message: str, status: int = 0, fault: Fault = Fault.PASSING) -> None:
        super().__init__(message)
        self.status = status
        self.fault = Fault.OPERATOR if status in _NOT_ALLOWED else fault


class Resource(NamedTuple):
    """Where objects of a kind are found."""

    api_version: str
    plural: str

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of all objects, or of one."""
        root = "/apis" if "/" in self.api_version else "/api"
        inside = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}/{self.api_version}{inside}/{self.plural}" + (f"/{name}" if name else "")


class ObjectEvent(NamedTuple):
    """Something to be told about an object."""

    api_version: str
    kind: str
    namespace: str
    about: str
    """The name of the object."""
    reason: str
    message: str
    is_warning: bool = True
    uid: str = ""
    """Of the object; empty for one that was not created."""
    name: str = ""
    """Of the event, if it is to be recorded once."""


class Cluster:
    """A connection to an API server."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._find = lru_cache(maxsize=64)(self._discover)

    @classmethod
    def connect(cls, kubeconfig: Path | None) -> Cluster:
        """Connect with a kubeconfig, or as the pod that we run in.

        Raises:
            ClusterError: if neither is there.
        """
        try:
            from kubernetes import client, config
        except ImportError:
            why = "this needs the Kubernetes client: pip install 'memgate[kubernetes]'"
            raise ClusterError(why, fault=Fault.OPERATOR) from None
        configuration = client.Configuration()
        try:
            if kubeconfig is not None:
                config.load_kube_config(str(kubeconfig), client_configuration=configuration)
            else:
                config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException as error:
            said = str(error).rstrip(".")
            why = f"no way to Kubernetes: {said}; run it in a pod, or set MEMGATE_KUBECONFIG"
            raise ClusterError(why, fault=Fault.OPERATOR) from None
        configuration.retries = False
        return cls(client.ApiClient(configuration))

    def read(self, resource: Resource, name: str, namespace: str = "") -> JsonObject:
        """Return an object."""
        return self._call("GET", resource.path(namespace, name))

    def read_config_map(self, namespace: str, name: str) -> Mapping[str, str]:
        """Return what is in a ConfigMap."""
        data = as_object(self.read(Resource("v1", "configmaps"), name, namespace).get("data"))
        return {key: text for key, text in data.items() if isinstance(text, str)}

    def find(self, kind: str) -> Resource | None:
        """Return where objects of a kind (``Job.batch``) are; None if the cluster does not know it.

        Raises:
            ClusterError: if the API server does not answer.
        """
        return self._find(kind)

    def forget_kinds(self) -> None:
        """Discover again which kinds there are: some are installed after we are."""
        self._find.cache_clear()

    def list(self, resource: Resource, selector: str = "", namespace: str = "") -> list[JsonObject]:
        """Return the objects, in all namespaces or in one, whose labels match a selector."""
        found: list[JsonObject] = []
        query = {"labelSelector": selector, "limit": str(_PAGE)}
        while True:
            page = self._call("GET", resource.path(namespace), query=query)
            found += map(as_object, as_list(page.get("items")))
            goes_on = as_object(page.get("metadata")).get("continue")
            if not goes_on:
                return found
            query["continue"] = str(goes_on)

    def patch(self, resource: Resource, document: JsonObject, patch: Patch, part: str = "") -> None:
        """Change an object, or a part of it (``status``), by a JSON Patch."""
        path = _path(resource, document) + (f"/{part}" if part else "")
        self._call("PATCH", path, body=patch, content="application/json-patch+json")

    def create(self, resource: Resource, document: JsonObject) -> JsonObject:
        """Make an object; status 409 if there is one of that name."""
        metadata = as_object(document.get("metadata"))
        path = resource.path(str(metadata.get("namespace", "")))
        return self._call("POST", path, body=document)

    def replace(self, resource: Resource, document: JsonObject) -> JsonObject:
        """Write an object as it is here; status 409 if it was changed since it was read."""
        return self._call("PUT", _path(resource, document), body=document)

    def apply(self, resource: Resource, document: JsonObject, part: str = "") -> JsonObject:
        """Have an object, or a part of it (``status``), be as it is here: server-side apply.

        Fields that others own stay as they are; those that we no longer write are removed.
        """
        path = _path(resource, document) + (f"/{part}" if part else "")
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        content = "application/apply-patch+yaml"
        return self._call("PATCH", path, query=query, body=document, content=content)

    def delete(self, resource: Resource, name: str, namespace: str = "") -> None:
        """Delete an object and what it owns; one that is not there is none to delete."""
        try:
            query = {"propagationPolicy": "Background"}
            self._call("DELETE", resource.path(namespace, name), query=query)
        except ClusterError as error:
            if error.status != 404:
                raise

    def record_event(self, event: ObjectEvent) -> bool:
        """Record an event for an object, and say whether it is new: ``kubectl describe`` shows it.

        One with a name of its own is recorded once, by however many programs.
        """
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        named = {"name": event.name} if event.name else {"generateName": "memgate-"}
        namespace = event.namespace or "default"
        document = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {**named, "namespace": namespace},
            "involvedObject": {
                "apiVersion": event.api_version,
                "kind": event.kind,
                "namespace": namespace,
                "name": event.about,
                **({"uid": event.uid} if event.uid else {}),
            },
            "reason": event.reason,
            "message": event.message[:1024],
            "type": "Warning" if event.is_warning else "Normal",
            "source": {"component": "memgate"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._call("POST", Resource("v1", "events").path(namespace), body=document)
        except ClusterError as error:
            if error.status != 409 or not event.name:
                raise
            return False
        return True

    def _discover(self, kind: str) -> Resource | None:
        name, _, group = kind.partition(".")
        version = "v1"
        if group:
            try:
                preferred = as_object(self._call("GET", f"/apis/{group}").get("preferredVersion"))
            except ClusterError as error:
                if error.status == 404:
                    return None
                raise
            version = str(preferred.get("groupVersion"))
        path = f"/apis/{version}" if group else f"/api/{version}"
        for resource in as_list(self._call("GET", path).get("resources")):
            plural = str(as_object(resource).get("name"))
            if as_object(resource).get("kind") == name and "/" not in plural:
                return Resource(version, plural)
        return None

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content: str = "application/json",
    ) -> JsonObject:
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json", "Content-Type": content}
        request = self._api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._api.call_api(*request, _request_timeout=_TIMEOUT_SECONDS)
            said = answer.read()  # type: ignore[no-untyped-call]
        except (HTTPError, OSError) as error:
            why = f"Kubernetes' API server cannot be reached: {type(error).__name__}"
            raise ClusterError(why) from None
        if answer.status >= 300:
            raise ClusterError(_why(answer.status, said), answer.status)
        return as_object(json.loads(said))


def _path(resource: Resource, document: JsonObject) -> str:
    metadata = as_object(document.get("metadata"))
    return resource.path(str(metadata.get("namespace", "")), str(metadata.get("name", "")))


def _why(status: int, body: bytes) -> str:
    try:
        message = as_object(json.loads(body)).get("message")
    except ValueError:
        message = None
    return f"Kubernetes' API server says: {message or status}"
