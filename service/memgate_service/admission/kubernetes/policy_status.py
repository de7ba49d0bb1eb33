"""Policy objects -> their status: whether they are in force, and what is wrong with them."""

from __future__ import annotations

from datetime import UTC, datetime

from memgate_service.admission.kubernetes.cluster import ClusterError
from memgate_service.admission.kubernetes.json_parts import as_object
from memgate_service.admission.kubernetes.policy_resources import RESOURCES
from memgate_service.admission.kubernetes.policy_review import make_status
from memgate_service.admission.kubernetes.rounds import Done, Rounds
from memgate_worker.logs import write_line


class PolicyStatuses(Rounds):
    """Writes the status of policy objects."""

    def _go_round(self) -> Done:
        layers = self._policies.read()
        for state in self._policies.states():
            status = make_status(state, layers, datetime.now(UTC))
            if status is None:
                continue
            resource = RESOURCES[state.kind]
            metadata = as_object(state.document.get("metadata"))
            named = {name: metadata[name] for name in ("name", "namespace") if name in metadata}
            applied = {
                "apiVersion": resource.api_version,
                "kind": state.kind.partition(".")[0],
                "metadata": named,
                "status": status,
            }
            try:
                self._cluster.apply(resource, applied, "status")
            except ClusterError as error:  # deleted in the meantime
                write_line("policy", {**named, "error": error.message})
        return Done()
