"""Shadow pods at a real API server: the test plays a kubelet and the counter of quotas."""

from __future__ import annotations

import copy
from typing import Any

from kubernetes import client as kube

from memgate_service.admission.core.rehearsal import RehearsalResult, write_result
from tests.chart import render
from tests.integration.kube_lab import Lab
from tests.record_reviews import read_example
from tests.running import wait_until

FENCE = "memgate-rehearsals"

#: what a container runtime says it ran
RAN = "docker.io/team/train@sha256:" + "c" * 64


class Shadows:
    """The shadows in a namespace that wants rehearsals."""

    def __init__(self, lab: Lab, namespace: str) -> None:
        self.namespace = namespace
        self._lab = lab
        self._core = kube.CoreV1Api(lab.client)
        objects = render({"rehearsals.enabled": True})
        lab.apply(*(one for one in objects if one["kind"] == "PriorityClass"))
        self.take_part("enabled")

    def take_part(self, value: str) -> None:
        """Have the namespace take part, or with another value not."""
        label = f"memgate.dev/rehearsals={value}"
        self._lab.kubectl("label", "namespace", self.namespace, label, "--overwrite")

    def find(self) -> list[Any]:
        """Return those that exist."""
        selector = "memgate.dev/rehearsal=true"
        found = self._core.list_namespaced_pod(self.namespace, label_selector=selector)
        return list(found.items)

    def fences(self) -> int:
        """Return how many of the two objects that fence them in there are."""
        policies = kube.NetworkingV1Api(self._lab.client)
        found: list[Any] = [
            *policies.list_namespaced_network_policy(self.namespace).items,
            *self._core.list_namespaced_resource_quota(self.namespace).items,
        ]
        return sum(one.metadata.name == FENCE for one in found)

    def count(self) -> bool:
        """Do what a controller manager would: count the quota. Say whether there is a shadow."""
        quotas: Any = self._core.list_namespaced_resource_quota(self.namespace).items
        if any(one.metadata.name == FENCE for one in quotas):
            used = str(len(self.find()))
            body = {"status": {"hard": {"pods": "1"}, "used": {"pods": used}}}
            self._core.patch_namespaced_resource_quota_status(FENCE, self.namespace, body)
        return bool(self.find())

    def wait(self) -> Any:
        """Wait for the shadow, and return it; there is never more than one."""
        wait_until(self.count, "the shadow is there", 60)
        (shadow,) = self.find()
        return shadow

    def end(self, shadow: Any, result: RehearsalResult | None, image_id: str = RAN) -> None:
        """Do what a kubelet would: the shadow has run, and left its result, or has failed."""
        left = {"message": write_result(result).decode()} if result is not None else {}
        ended = {"exitCode": 0 if result is not None else 1, **left}
        container = {
            "name": "rehearsal",
            "state": {"terminated": ended},
            "image": "i",
            "imageID": image_id,
            "ready": False,
            "restartCount": 0,
        }
        phase = "Succeeded" if result is not None else "Failed"
        body = {"status": {"phase": phase, "containerStatuses": [container]}}
        self._core.patch_namespaced_pod_status(shadow.metadata.name, self.namespace, body)

    def clean(self) -> None:
        """Remove the fence: another test begins without."""
        self._lab.kubectl(
            *("delete", "resourcequota,networkpolicy", FENCE, "--ignore-not-found"),
            f"--namespace={self.namespace}",
        )


def make_plain_jobset(name: str, *words: str, image: str = "team/train:1") -> dict[str, Any]:
    """Make a JobSet of one pod that says nothing about its job; ``words`` follow its command."""
    document: dict[str, Any] = copy.deepcopy(read_example("jobset.yaml")[0])
    document["metadata"]["name"] = name
    (replicated,) = document["spec"]["replicatedJobs"]
    replicated["replicas"] = 1
    job = replicated["template"]["spec"] | {"parallelism": 1, "completions": 1}
    replicated["template"]["spec"] = job
    job["template"]["metadata"]["annotations"] = {}
    spec = job["template"]["spec"]
    (container,) = spec["containers"]
    container |= {"command": ["python", "train.py", *(words or (name,))], "image": image}
    spec["nodeSelector"] = {"nvidia.com/gpu.product": "Tesla-T4"}
    return document
