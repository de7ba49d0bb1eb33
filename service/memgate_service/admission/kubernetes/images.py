"""Pods that run -> which image is meant by a name with a tag: its digest, as the kubelet found it.

A tag may mean another image tomorrow. Nothing asks a registry: what has never run here is known by
its tag alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from memgate_service.admission.kubernetes.json_parts import JsonObject, as_list, as_object

#: an id without a name before this cannot be pulled by it
_MARK = "@sha256:"

#: what older container runtimes put before an image's name
_SCHEME = "docker-pullable://"


def has_digest(image: str) -> bool:
    """Say whether a name means one image, whatever happens to its tags."""
    return _MARK in image


def find_images(pods: Iterable[JsonObject]) -> dict[str, str]:
    """Return images by their digests, by how pods have them written; the newest pod counts."""
    newest_last = sorted(pods, key=_started_at)
    return {written: image for pod in newest_last for written, image in _run_images(pod)}


def find_run_image(pod: JsonObject, container: str) -> str:
    """Return which image a container of a pod ran, by its digest; empty if that is not known."""
    for status in _statuses(pod):
        image = str(status.get("imageID") or "").removeprefix(_SCHEME)
        if status.get("name") == container and has_digest(image):
            return image
    return ""


def _run_images(pod: JsonObject) -> Iterator[tuple[str, str]]:
    containers = as_list(as_object(pod.get("spec")).get("containers"))
    for container in map(as_object, containers):
        written = str(container.get("image"))
        image = find_run_image(pod, str(container.get("name")))
        if image and not has_digest(written):
            yield written, image


def _statuses(pod: JsonObject) -> Iterator[JsonObject]:
    return map(as_object, as_list(as_object(pod.get("status")).get("containerStatuses")))


def _started_at(pod: JsonObject) -> str:
    return str(as_object(pod.get("status")).get("startTime") or "")
