"""Gloo's groups without anybody else: every collective is done at once, as if all sent the same."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import Backend, ReduceOp

#: C++ calls methods of a group, but does not keep the Python object that has them
_kept: list[Any] = []


def make_gloo_of(gloo: Any) -> Any:
    """Return what makes a group: gloo's own for one process, ours for several."""

    class LoneOrNot(type(gloo)):  # type: ignore[misc]
        """Looks like gloo's class, which ``torch.distributed`` calls and asks for its parts."""

        def __call__(cls, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> Any:
            if size < 2:
                return gloo(store, rank, size, *args, **kwargs)
            _kept.append(_make_alone(rank, size, gloo))
            return _kept[-1]

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, (gloo, _LoneGloo))

        def __getattr__(cls, name: str) -> Any:
            return getattr(gloo, name)

    return LoneOrNot("ProcessGroupGloo", (), {"__module__": gloo.__module__})


def _make_alone(rank: int, size: int, gloo: Any) -> Any:
    try:
        return _LoneGloo(rank, size, gloo._Options())
    except TypeError:  # an older torch has no groups whose methods are Python's
        from torch._C._distributed_c10d import FakeProcessGroup

        return FakeProcessGroup(rank, size)


class _LoneGloo(Backend):
    """One rank of a group, on behalf of all."""

    def __init__(self, rank: int, size: int, options: Any) -> None:
        super().__init__(rank, size)
        self._rank = rank
        self._size = size
        self._options = options

    @property
    def options(self) -> Any:
        return self._options

    def getBackendName(self) -> str:
        return "gloo"

    @property
    def supports_splitting(self) -> bool:
        return True

    def split(self, store: Any, ranks: Any, options: Any) -> Any:
        if self._rank not in ranks:
            return None
        _kept.append(_LoneGloo(ranks.index(self._rank), len(ranks), options or self._options))
        return _kept[-1]

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        return _done(tensors)

    def allreduce(self, tensors: Any, opts: Any) -> Any:
        _reduce(tensors, opts.reduceOp, self._size)
        return _done(tensors)

    allreduce_coalesced = allreduce_sparse = allreduce

    def reduce(self, tensors: Any, opts: Any) -> Any:
        if opts.rootRank == self._rank:
            _reduce(tensors, opts.reduceOp, self._size)
        return _done(tensors)

    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        for parts, given in zip(outputs, inputs):
            for part in parts:
                part.copy_(given.reshape(part.shape) if part.numel() == given.numel() else part)
        return _done(outputs)

    def _allgather_base(self, output: Any, given: Any, opts: Any) -> Any:
        output.view(-1).copy_(given.reshape(-1).repeat(self._size))
        return _done(output)

    all_gather_single = _allgather_base

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        for parts in outputs:
            for part, given in zip(parts, inputs):
                part.copy_(given)
        return _done(outputs)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        for output, given in zip(outputs, inputs):
            self._allgather_base(output, given, opts)
        return _done(outputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        if opts.rootRank == self._rank:
            return self.allgather(outputs, inputs, opts)
        return _done(inputs)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        if opts.rootRank == self._rank:
            for output, parts in zip(outputs, inputs):
                output.copy_(parts[self._rank])
        return _done(outputs)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        for output, parts in zip(outputs, inputs):
            output.copy_(parts[self._rank])
        _reduce(outputs, opts.reduceOp, self._size)
        return _done(outputs)

    def _reduce_scatter_base(self, output: Any, given: Any, opts: Any) -> Any:
        output.view(-1).copy_(given.reshape(self._size, -1)[self._rank])
        _reduce([output], opts.reduceOp, self._size)
        return _done(output)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        for output, given in zip(outputs, inputs):
            self._reduce_scatter_base(output, given, opts)
        return _done(outputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def alltoall_base(self, output: Any, given: Any, taken: Any, sent: Any, opts: Any) -> Any:
        parts = given.split(list(sent)) if len(sent) else given.chunk(self._size)
        places = output.split(list(taken)) if len(taken) else output.chunk(self._size)
        return self.alltoall(list(places), list(parts), opts)

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        own = inputs[self._rank]
        for output in outputs:
            if output.shape == own.shape:
                output.copy_(own)
        return _done(outputs)

    def send(self, tensors: Any, destination: int, tag: int) -> Any:
        return _done(tensors)

    def recv(self, tensors: Any, source: int, tag: int) -> Any:
        return _done(tensors)

    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        return _done(tensors)

    def barrier(self, opts: Any) -> Any:
        return _done([])

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """Everybody is there."""

    def _set_sequence_number_for_group(self) -> None:
        """There is nobody to compare it with."""

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def set_timeout(self, timeout: Any) -> None:
        """Nothing is waited for."""

    def shutdown(self) -> None:
        """Nothing is open."""

    abort = shutdown


def _done(result: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(result)
    return torch._C._distributed_c10d._create_work_from_future(future)


def _reduce(tensors: Any, operation: Any, num_ranks: int) -> None:
    for tensor in tensors:
        if operation == ReduceOp.SUM:
            tensor.mul_(num_ranks)
        elif operation == ReduceOp.PRODUCT:
            tensor.pow_(num_ranks)
