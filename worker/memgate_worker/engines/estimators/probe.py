"""JobSpec -> what estimators of others know of it. Needs torch; runs in the job's own process.

The forward pass runs once on the phantom, where no kernel computes anything, and each operator that
makes new tensors is written down. Nothing is taken from the phantom's allocator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from memgate.estimators.facts import JobFacts, Operator, Weight
from memgate.jobspec import JobSpec, Precision
from memgate_worker.engines.versions import library_versions
from memgate_worker.jobs.loop import place, ready
from memgate_worker.jobs.models import build_for
from memgate_worker.jobs.tasks.task import each_tensor, move

_DEVICE = "cuda"
_AUTOCAST = {Precision.AMP_FP16: torch.float16, Precision.AMP_BF16: torch.bfloat16}


class _Graph(TorchDispatchMode):
    """Writes down the operators that make new tensors, and what they take."""

    def __init__(self, weights: Mapping[int, int]) -> None:
        super().__init__()
        self._weights = weights
        self._makers: dict[int, int] = {}
        #: kept, so that no other storage gets the same name
        self._kept: list[Any] = []
        self.operators: list[Operator] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        taken = {_name(one) for one in _tensors([*args, *(kwargs or {}).values()])}
        new = [one for one in _tensors(made) if _name(one) not in taken | self._makers.keys()]
        new = [one for one in new if one.device.type == _DEVICE]
        if new:
            self._add(str(func.overloadpacket), new, taken)
        return made

    def _add(self, name: str, new: list[torch.Tensor], taken: set[int]) -> None:
        sizes = {_name(one): one.untyped_storage().nbytes() for one in new}
        inputs = sorted(self._makers[one] for one in taken if one in self._makers)
        weights = sorted(self._weights[one] for one in taken if one in self._weights)
        for one in new:
            self._makers[_name(one)] = len(self.operators)
            self._kept.append(one.untyped_storage())
        self.operators.append(Operator(name, sum(sizes.values()), tuple(inputs), tuple(weights)))


def _name(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for one in values:
            yield from _tensors(one)


def describe_job(spec: JobSpec) -> JobFacts:
    """Build a job's model, run it forward once, and return what there is to see."""
    spec, model, tasks = ready(spec, build_for(spec))
    model = place(spec, model, _DEVICE)
    parameters = {_name(one): one for one in model.parameters()}
    task = max(tasks, key=lambda one: sum(part.numel() for part in each_tensor(one.batch)))
    batch = move(task.batch, _DEVICE)
    dtype = _AUTOCAST.get(spec.precision)
    graph = _Graph({name: place for place, name in enumerate(parameters)})
    with torch.autocast(_DEVICE, dtype=dtype, enabled=dtype is not None), graph:
        outputs = task.call(model, batch)
        task.loss(outputs, batch)
    owned = [_own_elements(module) for module in model.modules()]
    first = next(_outputs(outputs), None)
    return JobFacts(
        weights=tuple(
            Weight(one.numel(), one.untyped_storage().nbytes(), one.requires_grad)
            for one in parameters.values()
        ),
        largest_layer=max(owned),
        num_layers=sum(bool(size) for size in owned),
        buffer_bytes=sum(one.numel() * one.element_size() for one in model.buffers()),
        batch_bytes=sum(one.numel() * one.element_size() for one in each_tensor(batch)),
        operators=tuple(graph.operators),
        output_bytes=0 if first is None else first.numel() * first.element_size(),
        versions=library_versions(),
        architectures=tuple(torch.cuda.get_arch_list()),
    )


def _own_elements(module: nn.Module) -> int:
    return sum(one.numel() for one in module.parameters(recurse=False))


def _outputs(outputs: Any) -> Iterator[torch.Tensor]:
    """Yield the outputs of a model, the logits of transformers' first."""
    logits = getattr(outputs, "logits", None)
    yield from each_tensor(outputs if logits is None else logits)
