"""What is held until it was rehearsed -> released, or refused if it does not fit.

Where nothing is enforced, what has no description is rehearsed beside its job, which is not held.
"""

from __future__ import annotations

from memgate_service.admission.core.rehearsal import RehearsalResult
from memgate_service.admission.core.rules import Mode
from memgate_service.admission.kubernetes.cluster import ClusterError, Resource
from memgate_service.admission.kubernetes.controller import find_place
from memgate_service.admission.kubernetes.events import tell_released
from memgate_service.admission.kubernetes.holding import HELD, REHEARSAL, is_stopped, mark, release
from memgate_service.admission.kubernetes.json_parts import JsonObject
from memgate_service.admission.kubernetes.objects import find_pods
from memgate_service.admission.kubernetes.rehearsals import RehearsingRounds
from memgate_service.admission.kubernetes.rounds import Done
from memgate_service.admission.kubernetes.settings import Shape
from memgate_worker.logs import write_line

_SELECTOR = f"{HELD}={REHEARSAL}"


class RehearsalController(RehearsingRounds):
    """Releases what waits for its rehearsal."""

    @property
    def every_seconds(self) -> float:  # type: ignore[override]
        """How often; where rehearsals were turned off, there is hardly anything to release."""
        return 0.0 if self._settings.rehearsal_image else 30.0

    def _go_round(self) -> Done:
        done = Done()
        for one in self._list_objects(_SELECTOR):
            if one.is_held_itself:
                done = done.plus(self._look_at(*one))
        return done

    def _look_at(self, kind: str, shape: Shape, resource: Resource, document: JsonObject) -> Done:
        chosen = self._choose_rule(find_place(kind, document))
        if chosen.mode is not Mode.ENFORCE or chosen.on.get("undescribed") != "rehearse":
            result: RehearsalResult | None = RehearsalResult(why="the policy was changed")
        elif not is_stopped(document, shape):
            result = RehearsalResult(why="somebody has released it")
        else:
            result = self._rehearsals.look_at(document, find_pods(document, shape)).result
        if result is None:
            return Done(num_waiting=1)
        is_released = not result.is_refused
        patch = release(document, shape) if is_released else mark(document, "rejected")
        try:
            self._cluster.patch(resource, document, patch)
        except ClusterError as error:  # changed or deleted in the meantime
            write_line("rehearsal", {"kind": kind, "error": error.message})
            return Done(num_waiting=1)
        self._try_event(tell_released(document, result.message, is_released=is_released))
        said = {"gpu": result.gpu, "decision": result.decision or "rehearsal"}
        done = "released" if is_released else "refused"
        said |= {"done": done, "why": result.message}
        self._record_once("rehearsal", kind, document, chosen, said)
        return Done(num_released=int(is_released), num_refused=int(not is_released))
