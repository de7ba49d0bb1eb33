"""What the operator sets for Kubernetes: ``MEMGATE_*`` variables, listed in docs/operations.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from memgate.errors import InputError
from memgate.gpus import GpuSpec, find_gpu, find_product
from memgate_service.admission.core.policy import Action, Policy
from memgate_service.admission.core.policy_file import PolicyFile
from memgate_service.admission.core.rules import Mode, PolicyDocument
from memgate_worker.queue.settings import Settings

Choice = Literal["admit", "reject", "hold"]

#: whether all pods of an object are one job: no; it may be; yes; yes, or some of them
Group = Literal["separate", "perhaps", "together", "at_most"]

#: what can be filled in for a scheduler: see ``right_size``
FILLS = ("hami", "volcano", "kai", "mig", "node-selector")

#: how node labels begin, unlike names in the catalogue
_LABEL = re.compile("(NVIDIA|Tesla|GeForce|Quadro)-")


class Shape(BaseModel):
    """Where in an object of some kind its pods are described, as JSON pointers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    templates: tuple[str, ...] = ()
    """Pod templates; ``*`` stands for every item of a list or an object."""
    suspend: str | None = None
    """What is true while the object makes no pods."""
    trainer: str | None = None
    """For kinds without a template: what says which resources each node gets."""
    pods: Group = "separate"
    """Whether all of its pods are one job: no; it may be; yes; yes, or some of them."""
    is_fixed: bool = True
    """Its templates cannot be changed once the object exists."""


class AdmissionSettings(Settings):
    """What happens to jobs without a clear answer, and what is filled in."""

    admission_mode: Mode = Mode.ENFORCE
    """Whether anything is refused or held, where no policy says: ``enforce``, ``warn``, ``audit``;
    ``MEMGATE_ADMISSION_MODE``."""

    admission_policy: Path | None = None
    """The file with the policy, JSON, read again when it changes; ``MEMGATE_ADMISSION_POLICY``."""

    admission_policy_resources: bool = False
    """Whether policies are also read from the cluster: ClusterMemgatePolicy and MemgatePolicy
    objects; ``MEMGATE_ADMISSION_POLICY_RESOURCES``."""

    admission_events: bool = False
    """Whether the webhooks record events of what they refuse, hold or let in without an answer;
    ``MEMGATE_ADMISSION_EVENTS``."""

    admission_audit_seconds: Annotated[float, Field(ge=0)] = 0.0
    """How often the controller judges what exists already; 0: never;
    ``MEMGATE_ADMISSION_AUDIT_SECONDS``."""

    admission_excluded_namespaces: str = "kube-system"
    """Namespaces, comma-separated, in which the controller judges nothing in the background;
    ``MEMGATE_ADMISSION_EXCLUDED_NAMESPACES``."""

    admission_on_timeout: Choice = "admit"
    """If there is no answer in time; ``MEMGATE_ADMISSION_ON_TIMEOUT``."""

    admission_on_uncertain: Choice = "admit"
    """If it may not fit, or memgate cannot tell; ``MEMGATE_ADMISSION_ON_UNCERTAIN``."""

    admission_wait_seconds: Annotated[float, Field(ge=0, le=30)] = 25.0
    """The longest that a webhook waits for a new answer, within its own timeout;
    ``MEMGATE_ADMISSION_WAIT_SECONDS``."""

    cluster_name: Annotated[str, Field(max_length=100)] = ""
    """What the cluster is called whose gates ask, where several share one memgate;
    ``MEMGATE_CLUSTER_NAME``."""

    admission_gpus: str = ""
    """The GPUs of the cluster, by their names in the catalogue or as their nodes' label
    ``nvidia.com/gpu.product`` has them; ``MEMGATE_ADMISSION_GPUS``. A pod that names none may get
    any of these."""

    admission_paths: dict[str, Shape] = Field(default_factory=dict)
    """Further kinds, as JSON by ``Kind.group``; ``MEMGATE_ADMISSION_PATHS``."""

    admission_releasers: str = "system:masters"
    """Users and groups who may release what is held, whatever the answer;
    ``MEMGATE_ADMISSION_RELEASERS``."""

    rehearsal_image: str = ""
    """The image with memgate for shadow pods, which run jobs without a description once, without a
    GPU; empty: none are run. ``MEMGATE_REHEARSAL_IMAGE``."""

    rehearsal_seconds: Annotated[float, Field(ge=30, le=3600)] = 330.0
    """The longest that something is held for a rehearsal; ``MEMGATE_REHEARSAL_SECONDS``."""

    rehearsal_memory_gib: Annotated[int, Field(ge=1, le=512)] = 8
    """What a shadow pod may take; ``MEMGATE_REHEARSAL_MEMORY_GIB``."""

    kubeconfig: Path | None = None
    """How to reach Kubernetes; ``MEMGATE_KUBECONFIG``. None: as the pod that this runs in."""

    right_size: str = "auto"
    """What is filled in where it is missing: ``auto`` (what an object shows that its scheduler
    understands), ``none``, or some of ``hami,volcano,kai,mig,node-selector``;
    ``MEMGATE_RIGHT_SIZE``."""

    @property
    def policy(self) -> Policy:
        """What happens to objects: what does not fit, or is described wrongly, is refused."""
        uncertain = Action(self.admission_on_uncertain)
        unknown = Action(self.admission_on_timeout)
        return Policy(uncertain=uncertain, unmeasured=uncertain, unknown=unknown)

    def open_policy(self, log: Callable[[str], None]) -> PolicyFile:
        """Return the policy for clusters' objects: that of the file, or one mode for all."""
        default = PolicyDocument(mode=self.admission_mode)
        return PolicyFile(self.admission_policy, log, default=default)

    @property
    def gpus(self) -> tuple[GpuSpec, ...]:
        """The GPUs of the cluster, the smallest first."""
        found = dict.fromkeys(map(find_named_gpu, split(self.admission_gpus)))
        return tuple(sorted(found, key=lambda gpu: gpu.memory_bytes))

    def product_label(self, gpu: GpuSpec) -> str:
        """Return a GPU's label as the operator wrote it, since PCIe and SXM differ."""
        names = split(self.admission_gpus)
        labels = (name for name in names if _LABEL.match(name) and find_product(name) == gpu)
        return next(labels, gpu.product.replace(" ", "-"))

    @field_validator("admission_gpus")
    @classmethod
    def _are_gpus(cls, names: str) -> str:
        try:
            for name in split(names):
                find_named_gpu(name)
        except InputError as error:
            raise ValueError(error.message) from None
        return names

    @field_validator("right_size")
    @classmethod
    def _are_fills(cls, names: str) -> str:
        if names not in ("auto", "none") and not set(split(names)) <= set(FILLS):
            raise ValueError(f"write 'auto', 'none', or some of {','.join(FILLS)}")
        return names

    @field_validator("admission_paths")
    @classmethod
    def _are_pointers(cls, shapes: dict[str, Shape]) -> dict[str, Shape]:
        for kind, shape in shapes.items():
            pointers = [*shape.templates, shape.suspend, shape.trainer]
            for pointer in filter(None, pointers):
                if not pointer.startswith("/"):
                    raise ValueError(
                        f"{kind}: {pointer!r} is not a JSON pointer, such as /spec/template"
                    )
        return shapes


def find_named_gpu(name: str) -> GpuSpec:
    """Return the GPU that an operator names, by the catalogue or as nodes' labels do.

    Raises:
        InputError: if there is none.
    """
    return (find_product(name) if _LABEL.match(name) else None) or find_gpu(name)


def split(names: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list."""
    return tuple(name.strip() for name in names.split(",") if name.strip())
