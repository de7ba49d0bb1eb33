"""The pods of an object -> a judgement: ConfigMaps are read, then the sequence of every door runs.

The steps are the same for the webhooks and the controllers; only how they are done differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memgate.client.clients import Client
from memgate.owner import Owner
from memgate_service.admission.core.judgement import Judgement, find_without_case
from memgate_service.admission.core.sequence import Judging, Rules, Step, judge_cases, perform
from memgate_service.admission.core.server_asker import NOBODY, ServerAsker
from memgate_service.admission.kubernetes.cases import find_cases, references
from memgate_service.admission.kubernetes.cluster import ClusterError
from memgate_service.admission.kubernetes.config_maps import ConfigMaps
from memgate_service.admission.kubernetes.objects import JOB_CONFIGMAP, Pod


@dataclass(frozen=True, slots=True)
class ReadConfigMaps(Step[dict[str, str]]):
    """Read the job specs that references name in a namespace."""

    namespace: str
    references: Sequence[str]


def judge_pods(
    namespace: str, pods: tuple[Pod, ...], rules: Rules, *, is_final: bool = True
) -> Judging[Judgement | None]:
    """Judge an object by its pods; None if none of them has a job of ours.

    Raises:
        InputError: if what a person wrote about a job is wrong.
    """
    texts: dict[str, str] = {}
    named = references(pods)
    if named:
        try:
            texts = yield from perform(ReadConfigMaps(namespace, sorted(named)))
        except ClusterError as error:
            why = f"annotation {JOB_CONFIGMAP} cannot be looked up: {error.message}"
            unread = ClusterError(why, error.status, error.fault)
            return rules.judge([find_without_case(unread)])
    cases = find_cases(pods, texts, tuple(rules.cluster))
    if not cases:
        return None
    return (yield from judge_cases(cases, rules, is_final=is_final))


class PodAsker(ServerAsker):
    """Performs the steps of the sequence for a controller."""

    def __init__(self, client: Client, config_maps: ConfigMaps) -> None:
        super().__init__(client)
        self._config_maps = config_maps

    def do(self, step: Step[Any], owner: Owner = NOBODY) -> Any:
        """Do a step of the sequence, for somebody."""
        if isinstance(step, ReadConfigMaps):
            return self._config_maps.read(step.namespace, step.references)
        return super().do(step, owner)
