"""Held objects -> released once there is an answer. The program behind ``memgate controller``.

Every few seconds it lists what has our label and asks memgate about it (``rounds``). The webhook
judges its patches like anybody else's.
"""

from __future__ import annotations

from memgate.errors import InputError
from memgate_service.admission.core.policy import Action, Policy
from memgate_service.admission.core.rules import Subject
from memgate_service.admission.kubernetes.cluster import ClusterError, Resource
from memgate_service.admission.kubernetes.events import tell_released
from memgate_service.admission.kubernetes.holding import HELD, is_held, mark, release
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_object
from memgate_service.admission.kubernetes.objects import find_pods
from memgate_service.admission.kubernetes.rounds import Done, Rounds
from memgate_service.admission.kubernetes.settings import Shape
from memgate_worker.logs import write_line

#: what is held and not judged yet; what was refused keeps the label, with another value
_SELECTOR = f"{HELD}=waiting"


class HoldController(Rounds):
    """Releases what is held."""

    def _go_round(self) -> Done:
        """Check everything that is held; a kind that cannot be listed is left for later."""
        done = Done()
        for one in self._list_objects(_SELECTOR):
            if one.is_held_itself:
                done = done.plus(self._look_at(*one))
        return done

    def _look_at(self, kind: str, shape: Shape, resource: Resource, document: JsonObject) -> Done:
        chosen = self._choose_rule(find_place(kind, document))
        policy = self._policy(chosen)
        try:
            action, message = self._choose(shape, document, policy)
        except InputError as error:
            action, message = policy.mistaken, error.message
        # what was held before the mode was changed is released
        action = chosen.mode.apply(action)
        if action is Action.WAIT:
            return Done(num_waiting=1)
        metadata = as_object(document.get("metadata"))
        name = {"kind": kind, "namespace": metadata.get("namespace"), "name": metadata.get("name")}
        try:
            if action is Action.ADMIT:
                self._cluster.patch(resource, document, release(document, shape))
                done = Done(num_released=1)
            else:
                value = "rejected" if action is Action.REJECT else "uncertain"
                self._cluster.patch(resource, document, mark(document, value))
                done = Done(num_refused=1)
            write_line("judged", {**name, "action": action, "message": message})
            named = {"apiVersion": resource.api_version, "kind": kind.partition(".")[0]}
            is_released = action is Action.ADMIT
            event = tell_released({**document, **named}, message, is_released=is_released)
            self._cluster.record_event(event)
        except ClusterError as error:  # changed or deleted in the meantime, or the webhook refuses
            write_line("judged", {**name, "error": error.message})
            return Done(num_waiting=1)
        return done

    def _choose(self, shape: Shape, document: JsonObject, policy: Policy) -> tuple[Action, str]:
        """Return what happens to an object, and why.

        Raises:
            InputError: if what a person wrote about a job is wrong.
        """
        if not is_held(document, shape):
            return Action.ADMIT, "somebody has released it"  # only the label is left
        namespace = str(as_object(document.get("metadata")).get("namespace", ""))
        judgement = self._judge(namespace, find_pods(document, shape), policy)
        if judgement is None:
            return Action.ADMIT, "it no longer has a job to ask about"
        if judgement.is_advice_pending:  # one event, with what would fit
            return Action.WAIT, judgement.message
        return judgement.action, judgement.message


def find_place(kind: str, document: JsonObject) -> Subject:
    """Return where an object is; who created it, it does not say."""
    metadata = as_object(document.get("metadata"))
    labels = as_object(metadata.get("labels"))
    return Subject(
        namespace=str(metadata.get("namespace", "")),
        kind=kind,
        label={name: text for name, text in labels.items() if isinstance(text, str)},
    )
