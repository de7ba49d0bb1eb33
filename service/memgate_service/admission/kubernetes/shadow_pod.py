"""A pod that trains -> its shadow: the same program, run once without a GPU to see what it needs.

Pure. The shadow has the pod's image, command, arguments and variables, and nothing by which it
could do harm: no GPU, no token, no secrets, no network, no host, nothing to write to but scratch
space, a deadline. It keeps to Pod Security's ``restricted``. What cannot be run like that is not
rehearsed, and ``NotRehearsedError`` says why.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from memgate.errors import InputError
from memgate_service.admission.core.places import Place
from memgate_service.admission.kubernetes.json_parts import (
    JsonObject,
    as_list,
    as_object,
    find_part,
)
from memgate_service.admission.kubernetes.objects import Pod
from memgate_service.admission.kubernetes.places import count_gpus, find_places
from memgate_service.admission.kubernetes.settings import AdmissionSettings

#: selects shadows, and nothing else does
LABELS = {"memgate.dev/rehearsal": "true", "app.kubernetes.io/managed-by": "memgate"}

#: of all that is needed for it in a namespace, and of the class of its priority
NAME = "memgate-rehearsals"

#: the one of its containers that runs the program
CONTAINER = "rehearsal"

#: of the names of shadows, which end with the key
_PREFIX = "memgate-rehearsal-"

#: a user without rights in every image; one of the pod's own is kept
_NOBODY = 65534

_SECONDS = 300
"""The longest that a shadow may exist."""
_RUN_SECONDS = 240

_PACK = "/memgate/pack"
_HOME = "/memgate/home"
_RESULT = "/dev/termination-log"

#: what a secret's value is replaced by
_DUMMY = "memgate-rehearsal"


class NotRehearsedError(InputError):
    """A pod cannot be run without a GPU, apart from the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """What is created for a rehearsal."""

    key: str
    """Names the rehearsal: two of the same program on the same GPU are one."""
    gpu: str
    image: str = ""
    """By its digest if that is known, otherwise as it was written."""
    pod: dict[str, Any] = field(default_factory=dict)


def make_shadow(
    document: JsonObject,
    pod: Pod,
    settings: AdmissionSettings,
    claims: Mapping[str, Iterable[str]],
    images: Mapping[str, str] | None = None,
) -> Shadow:
    """Return the shadow of a pod in an object.

    Args:
        document: the object, with ``apiVersion`` and ``kind``.
        pod: the one of its pods that trains.
        settings: the operator's.
        claims: the access modes of the volume claims in its namespace, by name.
        images: images by their digests, as pods of its namespace run them, by how they are written.

    Raises:
        NotRehearsedError: saying why it cannot be rehearsed.
    """
    inside: object = document
    for key in pod.pointer.split("/")[1:]:
        inside = find_part(inside, key)
    spec = as_object(as_object(inside).get("spec"))
    container = _find_container(spec)
    place = _find_place(pod, settings)
    if pod.copies.number > 1 and pod.copies.group != "separate":
        raise NotRehearsedError("its job has several pods, and only one would be run")
    made = _make_spec(spec, container, place, count_gpus(pod), settings, claims)
    # by the image as it is written: its digest may become known while the shadow runs
    digest = sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:20]
    written = str(container.get("image"))
    image = (images or {}).get(written, written)
    made["containers"][0]["image"] = image
    metadata = as_object(document.get("metadata"))
    owner = {
        "apiVersion": document.get("apiVersion"),
        "kind": document.get("kind"),
        "name": metadata.get("name"),
        "uid": metadata.get("uid"),
        "controller": False,
        "blockOwnerDeletion": False,
    }
    return Shadow(
        key=digest,
        gpu=place.gpu.name,
        image=image,
        pod={
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{_PREFIX}{digest}",
                "namespace": metadata.get("namespace"),
                "labels": dict(LABELS),
                "ownerReferences": [owner],
            },
            "spec": made,
        },
    )


def find_key(name: str) -> str:
    """Return the key of a shadow by its name."""
    return name.removeprefix(_PREFIX)


def make_fence(namespace: str) -> list[dict[str, Any]]:
    """Return what must be in a namespace before a shadow: no network, and a quota of its own."""
    metadata = {"name": NAME, "namespace": namespace, "labels": dict(LABELS)}
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata,
            "spec": {
                "podSelector": {"matchLabels": {"memgate.dev/rehearsal": "true"}},
                "policyTypes": ["Ingress", "Egress"],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": metadata,
            "spec": {
                "hard": {"pods": "1"},
                "scopeSelector": {
                    "matchExpressions": [
                        {"scopeName": "PriorityClass", "operator": "In", "values": [NAME]}
                    ]
                },
            },
        },
    ]


def _find_container(spec: JsonObject) -> JsonObject:
    """Return the container that trains; sidecars and init containers are left out."""
    found = [one for one in map(as_object, as_list(spec.get("containers"))) if _wants_gpu(one)]
    if len(found) != 1:
        raise NotRehearsedError(f"{len(found)} of its containers ask for a GPU, not one")
    if not as_list(found[0].get("command")):
        why = "its command is the image's own, which is not known here: write it as `command`"
        raise NotRehearsedError(why)
    return found[0]


def _wants_gpu(container: JsonObject) -> bool:
    resources = as_object(container.get("resources"))
    asked = {**as_object(resources.get("requests")), **as_object(resources.get("limits"))}
    return any("gpu" in name for name in asked)


def _find_place(pod: Pod, settings: AdmissionSettings) -> Place:
    """Return the one place with the most memory: what does not fit there fits nowhere."""
    places = [one for one in find_places(pod, settings.gpus) if not one.is_assumed]
    if not places:
        raise NotRehearsedError("it is not known which GPU it will get")
    if len({one.gpu.generation for one in places}) > 1:
        raise NotRehearsedError("it may get GPUs of several generations")
    place = max(places, key=lambda one: one.capacity_bytes)
    if place.is_part or place.declared is not None:
        raise NotRehearsedError("it gets a part of a GPU")
    return place


def _make_spec(
    spec: JsonObject,
    container: JsonObject,
    place: Place,
    num_gpus: int,
    settings: AdmissionSettings,
    claims: Mapping[str, Iterable[str]],
) -> dict[str, Any]:
    volumes = _make_volumes(spec, claims)
    user = _find_user(spec, container)
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    memory = f"{settings.rehearsal_memory_gib}Gi"
    resources = {
        "requests": {"cpu": "1", "memory": memory, "ephemeral-storage": "1Gi"},
        "limits": {"cpu": "2", "memory": memory, "ephemeral-storage": "8Gi"},
    }
    own = [{"name": "memgate", "mountPath": "/memgate"}]
    pulling = {"imagePullSecrets": spec["imagePullSecrets"]} if spec.get("imagePullSecrets") else {}
    return {
        **pulling,
        "activeDeadlineSeconds": _SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"},
        "preemptionPolicy": "Never",
        "priorityClassName": NAME,
        "restartPolicy": "Never",
        "securityContext": {
            "fsGroup": user,
            "runAsGroup": user,
            "runAsNonRoot": True,
            "runAsUser": user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": 5,
        "initContainers": [
            {
                "name": "memgate",
                "image": settings.rehearsal_image,
                "command": ["memgate", "pack", _PACK],
                "resources": resources,
                "securityContext": {**security, "readOnlyRootFilesystem": True},
                "volumeMounts": own,
            }
        ],
        "containers": [
            {
                "name": CONTAINER,
                "image": container.get("image"),
                "command": [
                    f"{_PACK}/bin/memgate",
                    "rehearse",
                    f"--gpu={place.gpu.name}",
                    f"--nproc={num_gpus}",
                    f"--timeout={_RUN_SECONDS}",
                    f"--host-memory={settings.rehearsal_memory_gib}",
                    f"--result={_RESULT}",
                    "--",
                    *map(str, as_list(container.get("command"))),
                    *map(str, as_list(container.get("args"))),
                ],
                **({"workingDir": container["workingDir"]} if container.get("workingDir") else {}),
                "env": _make_env(container),
                **_from_config_maps(container),
                "resources": resources,
                "securityContext": security,
                "terminationMessagePath": _RESULT,
                "terminationMessagePolicy": "File",
                "volumeMounts": [*_make_mounts(container, volumes), *own],
            }
        ],
        "volumes": [*volumes.values(), {"name": "memgate", "emptyDir": {"sizeLimit": "4Gi"}}],
    }


def _find_user(spec: JsonObject, container: JsonObject) -> int:
    for place in (container, spec):
        user = as_object(place.get("securityContext")).get("runAsUser")
        if isinstance(user, int) and user > 0:
            return user
    return _NOBODY


def _make_env(container: JsonObject) -> list[dict[str, Any]]:
    """Return the variables; instead of a secret's value, a word."""
    made = []
    for one in map(as_object, as_list(container.get("env"))):
        source = as_object(one.get("valueFrom"))
        if "secretKeyRef" in source:
            made.append({"name": one.get("name"), "value": _DUMMY})
        elif "resourceFieldRef" not in source:  # of a container that is not here
            made.append(dict(one))
    own = {"HOME": _HOME, "TMPDIR": f"{_HOME}/tmp", "MEMGATE_CACHE_DIR": f"{_HOME}/cache"}
    kept = [one for one in made if one.get("name") not in own]
    return [*kept, *({"name": name, "value": value} for name, value in own.items())]


def _from_config_maps(container: JsonObject) -> dict[str, Any]:
    found = map(as_object, as_list(container.get("envFrom")))
    kept = [dict(one) for one in found if "configMapRef" in one]
    return {"envFrom": kept} if kept else {}


def _make_volumes(
    spec: JsonObject, claims: Mapping[str, Iterable[str]]
) -> dict[str, dict[str, Any]]:
    """Return the volumes by name: what others share is read-only, the rest is empty."""
    return {
        str(one.get("name")): {"name": one.get("name"), **_make_volume(one, claims)}
        for one in map(as_object, as_list(spec.get("volumes")))
    }


def _make_volume(volume: JsonObject, claims: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    if "configMap" in volume:
        return {"configMap": volume["configMap"]}
    if "downwardAPI" in volume:
        return {"downwardAPI": volume["downwardAPI"]}
    claim = as_object(volume.get("persistentVolumeClaim")).get("claimName")
    if {"ReadWriteMany", "ReadOnlyMany"} & set(claims.get(str(claim), ())):
        return {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    return {"emptyDir": {"sizeLimit": "2Gi"}}


def _make_mounts(container: JsonObject, volumes: Mapping[str, JsonObject]) -> list[dict[str, Any]]:
    made = []
    for one in map(as_object, as_list(container.get("volumeMounts"))):
        volume = volumes.get(str(one.get("name")))
        if volume is None:
            continue
        mount = {name: one[name] for name in ("name", "mountPath", "subPath") if name in one}
        made.append(mount if "emptyDir" in volume else {**mount, "readOnly": True})
    return made
