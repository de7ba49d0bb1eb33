"""Held objects -> released when their answer is there. The program behind ``memgate controller``.

Every few seconds it lists what has our label and asks memgate about it. It keeps nothing: stopped
and started again, or run twice, it does the same. What it may do is decided once more by the
webhook, which sees its patch as anybody's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from memgate.errors import InputError
from service.admission.cases import find_cases, references
from service.admission.cluster import Cluster, ClusterError, Resource
from service.admission.holding import HELD, is_held, mark, release
from service.admission.judgement import Judgement, Known, NoAnswer, Said, Unknown, find, judge
from service.admission.objects import SHAPES, JsonObject, Pod, as_object, find_pods
from service.admission.settings import AdmissionSettings, Shape
from service.client import AnswerError, ClientError, MemgateClient
from worker.contract import Work
from worker.logs import write_line

#: what is held and not judged yet; what was refused keeps the label, with another value
_SELECTOR = f"{HELD}=waiting"

#: what memgate answers if it is the job that has no answer; all else may pass
_OF_THE_JOB = (None, 409, 422, 500)

#: how often to look which kinds the cluster has
_LOOK_AGAIN_SECONDS = 60.0


class Done(NamedTuple):
    """What a round did."""

    num_released: int = 0
    num_refused: int = 0
    num_waiting: int = 0


class Controller:
    """Releases what is held."""

    def __init__(
        self, cluster: Cluster, memgate: MemgateClient, settings: AdmissionSettings
    ) -> None:
        self._cluster = cluster
        self._memgate = memgate
        self._settings = settings
        self._looked_at = float("-inf")

    def run(self, interval_seconds: float, goes_on: Callable[[float], bool]) -> None:
        """Go round until told to stop; ``goes_on`` waits, and says whether to go on."""
        while True:
            done = self.go_round()
            if any(done):
                write_line("held", done._asdict())
            if not goes_on(interval_seconds):
                return

    def go_round(self) -> Done:
        """Look at everything that is held; a kind that cannot be listed is left for later."""
        if time.monotonic() - self._looked_at > _LOOK_AGAIN_SECONDS:
            self._cluster.forget()
            self._looked_at = time.monotonic()
        done = Done()
        for kind, shape in (SHAPES | self._settings.admission_paths).items():
            if shape.suspend is None and shape.templates != ("",):
                continue  # its pods are held, not itself
            try:
                resource = self._cluster.find(kind)
                held = [] if resource is None else self._cluster.list(resource, _SELECTOR)
            except ClusterError as error:
                write_line("cluster", {"kind": kind, "error": error.message})
                continue
            for document in held:
                assert resource is not None
                one = self._look_at(kind, shape, resource, document)
                done = Done(*(a + b for a, b in zip(done, one, strict=True)))
        return done

    def _look_at(self, kind: str, shape: Shape, resource: Resource, document: JsonObject) -> Done:
        try:
            message, action = self._judge(shape, document)
        except InputError as error:
            message, action = error.message, "reject"
        except ClusterError as error:
            message, action = error.message, "wait"
        metadata = as_object(document.get("metadata"))
        name = {"kind": kind, "namespace": metadata.get("namespace"), "name": metadata.get("name")}
        try:
            if action == "wait":
                return Done(num_waiting=1)
            if action == "admit":
                self._cluster.patch(resource, document, release(document, shape))
                reason, done = "MemgateReleased", Done(num_released=1)
            else:
                value = "rejected" if action == "reject" else "uncertain"
                self._cluster.patch(resource, document, mark(document, value))
                reason, done = "MemgateRefused", Done(num_refused=1)
            write_line("judged", {**name, "action": action, "message": message})
            self._cluster.tell(resource, kind, document, reason, message)
        except ClusterError as error:  # changed or gone meanwhile, or the webhook refuses
            write_line("judged", {**name, "error": error.message})
            return Done(num_waiting=1)
        return done

    def _judge(self, shape: Shape, document: JsonObject) -> tuple[str, str]:
        """Say what is to be done with an object, and why.

        Raises:
            InputError: if what a person wrote about a job is wrong.
            ClusterError: if a ConfigMap cannot be read.
        """
        if not is_held(document, shape):
            return "somebody released it", "admit"  # only the label is left
        pods = find_pods(document, shape)
        namespace = str(as_object(document.get("metadata")).get("namespace", ""))
        cluster = self._settings.gpus
        findings = [
            find(case, {name: self._ask(work) for name, work in case.questions().items()}, cluster)
            for case in find_cases(pods, self._texts(namespace, pods), cluster)
        ]
        if not findings:
            return "there is nothing to ask about it any more", "admit"
        return _action(judge(findings, self._settings))

    def _texts(self, namespace: str, pods: tuple[Pod, ...]) -> dict[str, str]:
        texts = {}
        for reference in references(pods):
            name, _, key = reference.partition("/")
            texts[reference] = self._cluster.read_config_map(namespace, name).get(key or "job", "")
        return texts

    def _ask(self, work: Work) -> Said:
        assert work.job is not None
        assert work.gpu is not None
        job_id = work.id()
        try:
            return Known(job_id, self._memgate.estimate(work.job, work.gpu, wait=0))
        except AnswerError as error:
            said = Unknown if error.status in _OF_THE_JOB else NoAnswer
            return said(job_id, error.detail)
        except ClientError as error:
            return NoAnswer(job_id, error.message)


def _action(judgement: Judgement) -> tuple[str, str]:
    if judgement.outcome.name == "NO_ANSWER":
        return judgement.message, "wait"
    return judgement.message, judgement.action
