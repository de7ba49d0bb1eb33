"""Trace -> whether it is of a job whose memory on a GPU a trace of a CPU does not tell."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from memgate.links import LinkedSet
from memgate.phases import find_outermost
from memgate.report import Reason
from memgate.trace import Trace

#: of what an iteration allocates; less is next to nothing
_MUCH = 0.01

_RECURRENT = frozenset({"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"})

#: the reason's code
DISTRIBUTED = "DISTRIBUTED"

#: what only a distributed job calls, and what people call it
_DISTRIBUTED_BY = {
    "DistributedDataParallel": "DistributedDataParallel (DDP)",
    "FullyShardedDataParallel": "FullyShardedDataParallel (FSDP)",
    "FSDP::": "fully_shard (FSDP2)",
    "c10d::": "torch.distributed",
    "gloo:": "torch.distributed with gloo",
    "nccl:": "torch.distributed with NCCL",
    "record_param_comms": "torch.distributed",
}
_COMPILED = ("Torch-Compiled Region", "CompiledFunction", "TorchDynamo", "## Call CompiledFxGraph")

#: namespaces of operators that PyTorch has itself
_OURS = frozenset(
    {"aten", "autograd", "c10d", "prim", "prims", "profiler", "torch", "inductor", "rng_prims"}
)

_ON_A_GPU = "a trace or a memory snapshot of it on a GPU has the figure"


def doubt_kinds(trace: Trace, linked: LinkedSet) -> Iterator[Reason]:
    """Doubt jobs whose memory on a GPU is not known."""
    names = {op.name for op in trace.ops} | {note.name for note in trace.annotations}
    if found := sorted(names & _RECURRENT):
        yield Reason(
            code="RECURRENT_LAYERS",
            message=f"{', '.join(found)}: on a GPU cuDNN runs recurrent layers, and what it keeps"
            f" for them is not known; {_ON_A_GPU}",
        )
    if told := find_distributed(trace):
        yield Reason(
            code=DISTRIBUTED,
            message=f"the job is distributed ({told}): what it keeps for"
            f" communication differs on GPUs, and the trace is of one process; {_ON_A_GPU}",
        )
    if _any_begins(names, _COMPILED):
        yield Reason(
            code="COMPILED",
            message="the job uses torch.compile, which makes other code for a GPU: what it"
            " allocates there is not known; record it without torch.compile",
        )
    if custom := _find_custom(trace, linked):
        yield Reason(
            code="CUSTOM_OPERATORS",
            message=f"what {', '.join(custom[:5])} allocates on a GPU is not known; {_ON_A_GPU}",
        )


def find_distributed(trace: Trace) -> str:
    """Return by which names a trace shows that it is of a distributed job; empty if it does not."""
    names = {op.name for op in trace.ops} | {note.name for note in trace.annotations}
    told = {said for begin, said in _DISTRIBUTED_BY.items() if _any_begins(names, (begin,))}
    return ", ".join(sorted(told))


def _any_begins(names: Iterable[str], begins: tuple[str, ...]) -> bool:
    return any(name.startswith(begins) for name in names)


def _find_custom(trace: Trace, linked: LinkedSet) -> list[str]:
    """Return operators of others that allocate more than next to nothing."""
    names = frozenset(filter(_is_custom, {op.name for op in trace.ops}))
    if not names:
        return []
    others = (op for op in trace.ops if op.name in names)
    blocks = sorted((one.block.alloc_us, one.block.size_bytes) for one in linked.blocks)
    moments = [at_us for at_us, _ in blocks]
    total = sum(size for _, size in blocks)
    sizes: dict[str, int] = {}
    for op in find_outermost(sorted(others)):
        made = blocks[bisect_left(moments, op.begin_us) : bisect_right(moments, op.end_us)]
        sizes[op.name] = sizes.get(op.name, 0) + sum(size for _, size in made)
    return sorted(name for name, size in sizes.items() if size > _MUCH * total)


def _is_custom(name: str) -> bool:
    namespace, colons, _ = name.partition("::")
    return bool(colons) and namespace.isidentifier() and namespace not in _OURS
