"""What the controllers have in common: they go round until stopped, and ask memgate about pods.

They keep nothing: stopped and started again, or run twice, they do the same.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from memgate.client.clients import Client
from memgate.client.errors import AnswerError, ClientError
from memgate.contract import Work
from memgate.max_batch import MaxBatch
from memgate_service.admission.core.judgement import (
    Judgement,
    Known,
    NoAnswer,
    Said,
    Unknown,
    find,
    judge,
)
from memgate_service.admission.core.settings import AdmissionSettings
from memgate_service.admission.kubernetes.cases import find_cases, references
from memgate_service.admission.kubernetes.cluster import Cluster, ClusterError
from memgate_service.admission.kubernetes.objects import Pod
from memgate_worker.logs import write_line

#: what memgate answers if it is the job that has no answer; all else may pass
_OF_THE_JOB = (None, 409, 422, 500)

#: how long to wait for a largest batch, which is said once, when something is refused
_BATCH_SECONDS = 5.0

#: how often to look which kinds the cluster has
_LOOK_AGAIN_SECONDS = 60.0


class Done(NamedTuple):
    """What a round did."""

    num_released: int = 0
    num_refused: int = 0
    num_waiting: int = 0

    def plus(self, other: Done) -> Done:
        """Return what both did."""
        return Done(*(a + b for a, b in zip(self, other, strict=True)))


class Rounds(ABC):
    """Looks at objects that wait for an answer, again and again."""

    def __init__(self, cluster: Cluster, memgate: Client, settings: AdmissionSettings) -> None:
        self._cluster = cluster
        self._memgate = memgate
        self._settings = settings
        self._looked_at = float("-inf")

    def run(self, interval_seconds: float, goes_on: Callable[[float], bool]) -> None:
        """Go round until told to stop; ``goes_on`` waits, and says whether to go on."""
        while True:
            try:
                done = self.go_round()
                if any(done):
                    write_line("held", done._asdict())
            except ClusterError as error:
                write_line("cluster", {"error": error.message})
            if not goes_on(interval_seconds):
                return

    def go_round(self) -> Done:
        """Look at everything that waits.

        Raises:
            ClusterError: if the API server does not list it.
        """
        if time.monotonic() - self._looked_at > _LOOK_AGAIN_SECONDS:
            self._cluster.forget()
            self._looked_at = time.monotonic()
        return self._go_round()

    @abstractmethod
    def _go_round(self) -> Done:
        """Look at everything that waits."""

    def _judge_pods(self, namespace: str, pods: tuple[Pod, ...]) -> Judgement | None:
        """Say what is known of the jobs of pods; None if they have none.

        Raises:
            InputError: if what a person wrote about a job is wrong.
            ClusterError: if a ConfigMap cannot be read.
        """
        cluster = self._settings.gpus
        findings = [
            find(case, {name: self._ask(work) for name, work in case.questions().items()}, cluster)
            for case in find_cases(pods, self._texts(namespace, pods), cluster)
        ]
        if not findings:
            return None
        judgement = judge(findings, self._settings)
        works = judgement.batch_questions()
        found = {job_id: self._ask_batch(work) for job_id, work in works.items()}
        known = {job_id: batch for job_id, batch in found.items() if batch is not None}
        return judgement.with_batches(known, cluster)

    def _texts(self, namespace: str, pods: tuple[Pod, ...]) -> dict[str, str]:
        texts = {}
        for reference in references(pods):
            name, _, key = reference.partition("/")
            texts[reference] = self._cluster.read_config_map(namespace, name).get(key or "job", "")
        return texts

    def _ask_batch(self, work: Work) -> MaxBatch | None:
        assert work.job is not None
        assert work.gpu is not None
        try:
            return self._memgate.max_batch(work.job, work.gpu, wait=_BATCH_SECONDS)
        except ClientError:  # it is advice: others wait for their answers
            return None

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
