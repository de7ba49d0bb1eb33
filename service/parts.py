"""What the routes of one service share. Made by ``app``, found through ``request.app.state``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cachetools import LRUCache
from fastapi import Depends, Request

from service.access import Gatekeeper
from service.metrics import Metrics
from service.settings import ServiceSettings
from service.waiting import Waiters
from worker.client import QueueClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All that a handler may need."""

    settings: ServiceSettings
    queue: QueueClient
    waiters: Waiters
    gatekeeper: Gatekeeper
    metrics: Metrics
    #: answers by the digest of the very bytes that asked; they never change
    answers: LRUCache[bytes, tuple[str, bytes]]


def _parts(request: Request) -> Parts:
    parts = request.app.state.parts
    assert isinstance(parts, Parts)
    return parts


TheParts = Annotated[Parts, Depends(_parts)]
