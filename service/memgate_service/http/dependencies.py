"""What the routes of one service share. Made by ``app``, found through ``request.app.state``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Depends, Request

from memgate_service.admission.kubernetes.config_maps import ConfigMaps
from memgate_service.admission.kubernetes.policy_resources import PolicyResources
from memgate_service.http.access import Gatekeeper
from memgate_service.http.asked import Asked
from memgate_service.http.decisions import Decisions
from memgate_service.http.events import EventSender
from memgate_service.http.metrics import Metrics
from memgate_service.http.response_cache import ResponseCache
from memgate_service.http.waiting import Waiters
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.client import QueueClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """Everything that a handler may need."""

    settings: ServiceSettings
    queue: QueueClient
    waiters: Waiters
    gatekeeper: Gatekeeper
    metrics: Metrics
    #: what callers asked, each question with its own id
    asked: Asked
    #: answers by the digest of the exact bytes of the request
    answers: ResponseCache
    #: how many new questions are put on the queue at the same time
    submitting: CapacityLimiter
    #: how many probes look at the same time: others' requests that hang do not hold them up
    probing: CapacityLimiter
    #: where Kubernetes objects may keep their job specs
    config_maps: ConfigMaps
    #: what the operator says about Kubernetes objects
    policy: PolicyResources
    #: what was decided about them
    decisions: Decisions
    #: and is told in the cluster
    events: EventSender


async def _find(request: Request) -> Dependencies:
    # async: FastAPI would send anything else through a thread, for every request
    deps = request.app.state.dependencies
    assert isinstance(deps, Dependencies)
    return deps


Deps = Annotated[Dependencies, Depends(_find)]
