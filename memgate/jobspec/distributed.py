"""How a job is divided over many GPUs: one process for each, all of them with the same spec.

What each strategy runs is in ``docs/distributed.md``. Which fields mean something with which of
them is checked here; what of a job cannot be divided yet is in ``undivided``.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from memgate.jobspec.parts import Part, Size, Truth
from memgate.mistakes import RuleError

#: GPUs in one machine at most, unless a spec says it
USUAL_GPUS_PER_NODE = 8

#: of ``wrap`` by size: parameters that make a part of its own
_USUAL_MIN_PARAMETERS = 100_000_000

#: megabytes of gradients that DDP sends at once
_USUAL_BUCKET_MB = 25


class Strategy(StrEnum):
    """What is divided, and by which code."""

    DDP = "ddp"
    """Nothing: every GPU has the whole model (``DistributedDataParallel``)."""
    ZERO1 = "zero1"
    """The optimizer's state: ``ZeroRedundancyOptimizer`` with ``DistributedDataParallel``."""
    ZERO2 = "zero2"
    """Gradients, too: FSDP's ``SHARD_GRAD_OP``."""
    ZERO3 = "zero3"
    """Weights, too: FSDP's ``FULL_SHARD``."""
    FSDP = "fsdp"
    """Weights, gradients and state: ``FullyShardedDataParallel``."""
    FSDP2 = "fsdp2"
    """The same by ``fully_shard``, each weight on its own."""
    HSDP = "hsdp"
    """The same within a group of GPUs, and groups are copies of one another."""
    TP = "tp"
    """Each layer: DTensor's tensor parallelism."""
    PP = "pp"
    """The model, into stages of layers: a pipeline."""

    @property
    def is_by_flat_parameters(self) -> bool:
        """It is ``FullyShardedDataParallel``, whatever it is called here."""
        return self in (Strategy.FSDP, Strategy.ZERO2, Strategy.ZERO3)

    @property
    def is_by_ddp(self) -> bool:
        """Every GPU has the whole model."""
        return self in (Strategy.DDP, Strategy.ZERO1)


class Wrap(StrEnum):
    """Which parts of a model are collected and dropped on their own."""

    BLOCKS = "blocks"
    """Its repeated blocks, such as the layers of a transformer."""
    SIZE = "size"
    """Whatever has many parameters."""
    NONE = "none"
    """The model as a whole."""


class Schedule(StrEnum):
    """In which order the stages of a pipeline work on parts of a batch."""

    GPIPE = "gpipe"
    """All forward passes of a step, then all backward passes."""
    ONE_F_ONE_B = "1f1b"
    """Forward and backward passes in turn, as soon as the pipeline is full."""
    INTERLEAVED = "interleaved-1f1b"
    """The same with two stages on each GPU, of half as many layers each."""


Dtype = Literal["fp32", "fp16", "bf16"]


class MixedPrecisionSpec(Part):
    """Types that FSDP uses instead of that of the weights."""

    param: Dtype | None = None
    """Of the weights while they are whole, and so of the computation."""
    reduce: Dtype | None = None
    """Of gradients while they are sent; that of ``param`` unless given."""
    buffer: Dtype | None = None
    """Of what a model keeps besides its weights; ``fsdp``, ``zero2`` and ``zero3`` only."""


#: yes or no, or how many GPUs keep a copy
_Reshard = Annotated[
    Annotated[Truth, Tag("~switch")] | Annotated[Size, Tag("~number")],
    Discriminator(lambda value: "~number" if type(value) is int else "~switch"),
]


class DistributedSpec(Part):
    """A job of one process for each GPU. ``batch_size`` of the job is that of one GPU."""

    strategy: Strategy
    """What is divided over the GPUs, and whose code does it."""
    world_size: Annotated[Size, Field(examples=[8])]
    """How many GPUs there are, in all machines together."""
    gpus_per_node: Size | None = None
    """GPUs in one machine; unless given, as many as divide them evenly, 8 at most."""
    mixed_precision: MixedPrecisionSpec | None = None
    """FSDP's own; the job's ``precision`` says what the weights themselves are."""
    reshard_after_forward: _Reshard | None = None
    """Whether weights are dropped between forward and backward pass, true unless given. ``fsdp2``
    takes a number, too: GPUs that keep a copy among them."""
    wrap: Wrap | None = None
    """``blocks`` unless given: the model's repeated blocks; ``size``: parts with at least
    ``min_num_params``; ``none``: the whole model at once."""
    wrap_classes: Annotated[tuple[str, ...], Field(examples=[("LlamaDecoderLayer",)])] = ()
    """Names of the blocks' classes, if the model's own choice is not the job's."""
    min_num_params: Annotated[int, Field(strict=True, ge=1, le=1 << 40)] | None = None
    """With ``wrap: size``; 100,000,000 unless given."""
    cpu_offload: Truth = False
    """FSDP keeps weights, gradients and the optimizer's state in the host's memory."""
    use_orig_params: Truth | None = None
    """Of ``FullyShardedDataParallel``: true unless given."""
    bucket_cap_mb: Annotated[int, Field(strict=True, ge=1, le=1 << 20)] | None = None
    """Megabytes of gradients that DDP sends at once; 25 unless given."""
    gradient_as_bucket_view: Truth = False
    """Of DDP: gradients are kept in the buckets alone, and not twice."""
    find_unused_parameters: Truth = False
    """Of DDP, for models whose passes leave weights out."""
    static_graph: Truth = False
    """Of DDP: every iteration does the same."""
    no_sync: Truth = False
    """With ``gradient_accumulation_steps``: gradients are sent once for each step of the optimizer,
    so that FSDP keeps them whole until then."""
    replicas: Size | None = None
    """Of ``hsdp``: how many groups have a whole copy each; the number of machines unless given."""
    fsdp_version: Literal[1, 2] | None = None
    """Of ``hsdp``: which FSDP divides; 2 unless given."""
    tp_degree: Size | None = None
    """Of ``tp`` (all GPUs unless given), and of ``fsdp2`` on the rest of them: GPUs that divide
    each layer."""
    microbatches: Size | None = None
    """Of ``pp``: how many batches of ``batch_size`` pass through the stages in a step; as many as
    there are GPUs unless given."""
    schedule: Schedule | None = None
    """Of ``pp``; ``1f1b`` unless given."""

    def model_post_init(self, _: Any) -> None:
        """Check that each field means something with the strategy, and that numbers divide."""
        for field, strategies in _ONLY_WITH.items():
            is_given = getattr(self, field) != type(self).model_fields[field].default
            if is_given and self.strategy not in strategies:
                known = ", ".join(strategies)
                raise RuleError(
                    f"{field}: it means nothing with {self.strategy}, only with {known}",
                    "leave it out",
                )
        for rule, step in _find_broken(self):
            raise RuleError(rule, step)

    @property
    def node_size(self) -> int:
        """GPUs in one machine."""
        if self.gpus_per_node is not None:
            return self.gpus_per_node
        sizes = range(min(USUAL_GPUS_PER_NODE, self.world_size), 0, -1)
        return next(size for size in sizes if self.world_size % size == 0)

    @property
    def num_nodes(self) -> int:
        """How many machines there are."""
        return -(-self.world_size // self.node_size)

    @property
    def num_replicas(self) -> int:
        """Whole copies of the model among all GPUs, where groups of GPUs divide it."""
        return self.replicas or self.num_nodes

    @property
    def tensor_degree(self) -> int:
        """GPUs that divide each layer among them."""
        return self.tp_degree or (self.world_size if self.strategy is Strategy.TP else 1)

    @property
    def drops_weights(self) -> bool:
        """Weights are dropped between forward and backward pass."""
        if self.strategy is Strategy.ZERO2:
            return False
        return self.reshard_after_forward is not False

    @property
    def num_microbatches(self) -> int:
        """Batches that pass through a pipeline in a step."""
        return self.microbatches or self.world_size

    @property
    def pipeline_schedule(self) -> Schedule:
        """In which order the stages of a pipeline work."""
        return self.schedule or Schedule.ONE_F_ONE_B

    @property
    def stages_per_rank(self) -> int:
        """Stages of a pipeline that each GPU has."""
        return 2 if self.pipeline_schedule is Schedule.INTERLEAVED else 1

    @property
    def bucket_mb(self) -> int:
        """Megabytes of gradients that DDP sends at once."""
        return self.bucket_cap_mb or _USUAL_BUCKET_MB

    @property
    def least_parameters(self) -> int:
        """Parameters that make a part of its own, if parts are made by size."""
        return self.min_num_params or _USUAL_MIN_PARAMETERS


_BY_DDP = (Strategy.DDP, Strategy.ZERO1)
_BY_FLAT = (Strategy.FSDP, Strategy.ZERO2, Strategy.ZERO3)
_BY_FSDP = (*_BY_FLAT, Strategy.FSDP2, Strategy.HSDP)

#: fields that mean something with some strategies only
_ONLY_WITH: dict[str, tuple[Strategy, ...]] = {
    "mixed_precision": _BY_FSDP,
    "reshard_after_forward": (Strategy.FSDP, Strategy.FSDP2, Strategy.HSDP),
    "wrap": _BY_FSDP,
    "wrap_classes": _BY_FSDP,
    "min_num_params": _BY_FSDP,
    "cpu_offload": _BY_FSDP,
    "use_orig_params": (*_BY_FLAT, Strategy.HSDP),
    "bucket_cap_mb": _BY_DDP,
    "gradient_as_bucket_view": _BY_DDP,
    "find_unused_parameters": _BY_DDP,
    "static_graph": _BY_DDP,
    "no_sync": (*_BY_DDP, *_BY_FSDP),
    "replicas": (Strategy.HSDP,),
    "fsdp_version": (Strategy.HSDP,),
    "tp_degree": (Strategy.TP, Strategy.FSDP2),
    "microbatches": (Strategy.PP,),
    "schedule": (Strategy.PP,),
}


def fields_for(spec: DistributedSpec | None, strategy: Strategy) -> dict[str, Any]:
    """Return what was given for one strategy, and means something for another, too."""
    if spec is None:
        return {}
    given = spec.model_dump(mode="json", exclude_defaults=True)
    shared = {
        "mixed_precision",
        "wrap",
        "wrap_classes",
        "min_num_params",
        "no_sync",
        "bucket_cap_mb",
    }
    return {
        name: value
        for name, value in given.items()
        if name in shared and strategy in _ONLY_WITH[name]
    }


def _find_broken(spec: DistributedSpec) -> Iterator[tuple[str, str]]:
    """Yield rules that numbers and fields break among themselves, with the next step."""
    yield from _find_undivided(spec)
    if spec.wrap_classes and spec.wrap not in (None, Wrap.BLOCKS):
        yield f"wrap_classes: they are for 'wrap: blocks', and it is {spec.wrap}", "leave one out"
    if spec.min_num_params and spec.wrap is not Wrap.SIZE:
        yield "min_num_params: it is for 'wrap: size'", "add that, or leave it out"
    is_second = spec.strategy is Strategy.FSDP2 or (
        spec.strategy is Strategy.HSDP and spec.fsdp_version != 1
    )
    if spec.use_orig_params is not None and is_second:
        yield "use_orig_params: FSDP2 has no other parameters", "leave it out, or fsdp_version: 1"
    if spec.mixed_precision is not None and spec.mixed_precision.buffer and is_second:
        yield "mixed_precision.buffer: FSDP2 leaves buffers as they are", "leave it out"
    is_number = type(spec.reshard_after_forward) is int
    if is_number and spec.strategy is not Strategy.FSDP2:
        yield "reshard_after_forward: only fsdp2 takes a number", "give true or false"


def _find_undivided(spec: DistributedSpec) -> Iterator[tuple[str, str]]:
    """Yield numbers that do not divide the number of GPUs, or are not a part of it."""
    world = spec.world_size
    if spec.gpus_per_node is not None and spec.gpus_per_node > world:
        rule = f"gpus_per_node: a machine has {spec.gpus_per_node}, and the job {world} in all"
        yield rule, "give both as they are"
    elif world % spec.node_size:
        rule = f"world_size: {world} GPUs do not fill machines of {spec.node_size}"
        yield rule, "give gpus_per_node as it is, or another world_size"
    given = {"replicas": spec.num_replicas, "tp_degree": spec.tensor_degree}
    if type(spec.reshard_after_forward) is int:
        given["reshard_after_forward"] = spec.reshard_after_forward
    for field, number in given.items():
        if world % number:
            yield f"{field}: {number} does not divide the {world} GPUs", "give one that does"
    if spec.strategy is Strategy.TP and spec.tensor_degree != world:
        rule = f"tp_degree: of {world} GPUs, {spec.tensor_degree} divide each layer"
        yield rule, "use the strategy fsdp2, which divides the rest of them, or leave it out"
