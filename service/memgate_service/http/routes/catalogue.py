"""``GET /gpus``: what a job can be asked to fit on."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from memgate import gpus
from memgate.schemas import GpuRead
from memgate_service.http.access import needs
from memgate_service.http.openapi import PROBLEMS
from memgate_worker.queue.keys import Right

catalogue = APIRouter(
    tags=["catalogue"], responses=PROBLEMS, dependencies=[Depends(needs(Right.READ_OWN))]
)


@catalogue.get("/gpus")
async def list_gpus() -> list[GpuRead]:
    """Return the catalogue, the smallest memory first."""
    return [GpuRead.of(gpu) for gpu in gpus.list_gpus()]
