"""What a gate judges: a job, and where it may run. The doors turn their objects into cases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from memgate.contract import Work, WorkKind
from memgate.gpus import CATALOGUE, GpuRequest, GpuSpec
from memgate.jobspec import JobSpec
from memgate.placement import Room
from memgate.report import Estimate
from memgate.validation import validate
from memgate.worlds import JobGpus
from memgate_service.admission.core.answers import Question
from memgate_service.admission.core.places import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(ABC):
    """A job, and what must be asked to judge it."""

    label: str = ""
    """Which part of an object it is: ``spec.template``; empty if there is one part."""
    source: str = ""
    """Where a person has described the job: ``annotation memgate.dev/job``."""
    name_gpu_by: str = ""
    """How a person can say on which GPU the job must run."""
    doubt: str = ""
    """Why it is not known where the job will run."""

    @property
    def is_unplaced(self) -> bool:
        """Nothing says where it will run or how much memory it may take: nothing to check."""
        return False

    @abstractmethod
    def questions(self) -> dict[str, Question]:
        """Return the questions to ask, by a name that tells the answers apart."""

    @abstractmethod
    def rooms(self, estimates: Mapping[str, Estimate]) -> list[Room]:
        """Compare each place where the job may run with the estimates that were asked for."""

    @abstractmethod
    def own_estimate(self, estimates: Mapping[str, Estimate]) -> Estimate | None:
        """Return the estimate for the place with the most memory, if there is one."""

    def how_to_declare(self, size_bytes: int) -> str:
        """Say how to declare this much memory; empty if none is declared."""
        return ""

    def batch_question(self) -> Question | None:
        """Return the question for the largest batch that fits where the job has the most memory."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCase(Case):
    """A job, and all places where it may run, as far as they are known."""

    job: JobSpec
    places: tuple[Place, ...]
    world: JobGpus | None = None
    """The GPUs that it gets, if they are known."""

    @property
    def is_unplaced(self) -> bool:
        """No place was named, and no memory was declared."""
        return all(place.is_assumed and place.declared is None for place in self.places)

    @property
    def roomiest(self) -> Place:
        """Where the job has the most memory; there is a place unless there is a doubt."""
        return max(self.places, key=lambda place: place.capacity_bytes)

    def questions(self) -> dict[str, Question]:
        """Return the questions to ask, by the generation of the GPU.

        One run answers for all GPUs of a generation, and for every part of them.
        """
        largest: dict[str, GpuSpec] = {}
        for place in self.places:
            known = largest.get(place.gpu.generation)
            if known is None or known.memory_bytes < place.gpu.memory_bytes:
                largest[place.gpu.generation] = place.gpu
        return {
            generation: self._question(WorkKind.ESTIMATE, self._request(gpu))
            for generation, gpu in largest.items()
        }

    def rooms(self, estimates: Mapping[str, Estimate]) -> list[Room]:
        """Compare each place with the estimate of its generation."""
        return [place.compare(estimates[place.gpu.generation]) for place in self.places]

    def own_estimate(self, estimates: Mapping[str, Estimate]) -> Estimate | None:
        """Return the estimate for a whole GPU, if that is where the job runs."""
        place = self.roomiest
        estimate = estimates[place.gpu.generation]
        is_about_it = estimate.capacity_bytes == place.gpu.memory_bytes and not place.is_part
        return estimate if is_about_it else None

    def how_to_declare(self, size_bytes: int) -> str:
        """Write a size in the unit in which memory is declared."""
        return self.roomiest.how_to_declare(size_bytes)

    def batch_question(self) -> Question | None:
        """Ask about the place with the most memory, less the part that was not declared."""
        place = self.roomiest
        taken = place.gpu.memory_bytes - place.capacity_bytes
        return self._question(WorkKind.MAX_BATCH, self._request(place.gpu, taken))

    def _question(self, kind: WorkKind, gpu: GpuRequest) -> Question:
        work = Work(kind=kind, job=self.job, gpu=gpu)
        return Question(key=work.id(), job=self.job, gpu=gpu)

    def _request(self, gpu: GpuSpec, taken_bytes: int = 0) -> GpuRequest:
        named = gpu.name in CATALOGUE
        world = self.world
        # what the description says about GPUs, the object may allow
        divided = self.job.distributed is not None
        asked = {
            "name": gpu.name if named else None,
            "memory_bytes": None if named else gpu.memory_bytes,
            "compute_capability": None if named else gpu.capability,
            "already_used_bytes": taken_bytes,
            "count": 1 if world is None or divided else world.num_gpus,
            "per_node": None if world is None or divided else world.gpus_per_node,
        }
        # a person wrote how many there are: what is wrong with that is theirs to know
        return validate(GpuRequest, asked, what="the GPUs of this job")
