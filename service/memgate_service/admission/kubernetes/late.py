"""What was let in without an answer and does not fit -> suspended, where a policy says so.

``on: {late: reject}``. The mutating webhook labels what it lets in without an answer; here it is
judged again. Only what can be suspended is stopped, and only before a pod of it runs; nothing that
people have made is deleted. For everything else its owner is told, as everywhere.
"""

from __future__ import annotations

from datetime import UTC, datetime

from memgate.decision import Decision
from memgate.errors import InputError
from memgate_service.admission.core.judgement import Judgement
from memgate_service.admission.core.policy import Action
from memgate_service.admission.core.rules import Mode, PolicyChoice
from memgate_service.admission.kubernetes.cluster import ClusterError
from memgate_service.admission.kubernetes.controller import find_place
from memgate_service.admission.kubernetes.ends import has_started, keep_little
from memgate_service.admission.kubernetes.events import tell_released
from memgate_service.admission.kubernetes.holding import (
    LATE,
    can_hold_itself,
    hold,
    is_stopped,
    unfollow,
)
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_object
from memgate_service.admission.kubernetes.modes import describe
from memgate_service.admission.kubernetes.objects import find_pods
from memgate_service.admission.kubernetes.rounds import Done, Listed, Rounds
from memgate_worker.logs import write_line

#: after that, nobody is waiting for an answer any more
_PATIENCE_SECONDS = 600.0


class LateController(Rounds):
    """Stops what does not fit after all."""

    every_seconds = 5.0

    def _go_round(self) -> Done:
        done = Done()
        for one in list(self._list_objects(f"{LATE}=waiting")):
            done = done.plus(self._look_at(one))
        return done

    def _look_at(self, one: Listed) -> Done:
        chosen = self._choose_rule(find_place(one.kind, one.document))
        judgement = self._judge_again(one, chosen)
        is_open = judgement is not None and judgement.decision is Decision.UNKNOWN
        if is_open and _age(one.document) < _PATIENCE_SECONDS:
            return Done(num_waiting=1)
        patch = unfollow(one.document)
        is_stopped_now = judgement is not None and self._is_to_stop(one, chosen, judgement)
        if is_stopped_now:
            patch += hold(one.document, one.shape, "rejected")
        try:
            self._cluster.patch(one.resource, one.document, patch)
        except ClusterError as error:  # changed or deleted in the meantime
            write_line("late", {"kind": one.kind, "error": error.message})
            return Done(num_waiting=1)
        if not is_stopped_now or judgement is None:
            return Done()
        message = f"it was let in without an answer, and is suspended now: {judgement.message}"
        self._try_event(tell_released(one.document, message, is_released=False))
        said = describe(judgement) | {"decision": "reject", "why": judgement.message}
        self._record_once("late", one.kind, one.document, chosen, said | {"done": "held"})
        return Done(num_refused=1)

    def _judge_again(self, one: Listed, chosen: PolicyChoice) -> Judgement | None:
        namespace = str(as_object(one.document.get("metadata")).get("namespace", ""))
        pods = find_pods(one.document, one.shape)
        try:
            return self._judge(namespace, pods, self._policy(chosen))
        except InputError:  # a wrong description is told by others, and stops nothing
            return None

    def _is_to_stop(self, one: Listed, chosen: PolicyChoice, judgement: Judgement) -> bool:
        if chosen.mode is not Mode.ENFORCE or chosen.on.get("late") != "reject":
            return False
        does_not_fit = judgement.decision is Decision.REJECT and judgement.action is Action.REJECT
        if not does_not_fit or is_stopped(one.document, one.shape):
            return False
        uid = str(as_object(one.document.get("metadata")).get("uid"))
        can_be = can_hold_itself(one.document, one.shape)
        return can_be and not has_started(uid, map(_keep_little, self._list_objects()))


def _keep_little(one: Listed) -> JsonObject:
    return keep_little(one.document)


def _age(document: JsonObject) -> float:
    text = as_object(document.get("metadata")).get("creationTimestamp")
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(str(text))).total_seconds()
    except (ValueError, TypeError):
        return 0.0
