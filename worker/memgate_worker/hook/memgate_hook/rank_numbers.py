"""Small tensors between ranks: sizes, flags, a seed, most likely, that a rank cannot make up.

A tensor from a rank that does not exist has the contents that were there before, or made-up ones
(``native/delivery.cpp``). Where the sender was run earlier in the same run, what it sent is put in
their place; where it was not, integers are marked, and the answer is doubted if the job reads them.
Parts of unequal size between all ranks depend on all of them; that is noted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from .communication import Communication
from .later_imports import when_imported
from .rank_post import Post, carrying_objects, find_source, is_in, name_group

_Replace = Callable[[Any, Any], None]

#: more are no sizes
_MAX_NUMBERS = 4096
#: what sizes are; floating-point numbers are losses, bytes the state of random numbers
_SIZES = {torch.int16, torch.int32, torch.int64}


def share_numbers(communication: Communication, replace: _Replace) -> None:
    """Replace the calls that send such tensors; ``replace`` puts one in the other's place."""
    mail = _Mail(communication)
    _broadcast(mail, replace)
    _scatter(mail, replace)
    for send, receive in (("isend", "irecv"), ("send", "recv")):
        _send(mail, replace, send)
        _receive(mail, replace, receive)
    _exchange(mail, replace)
    _note_parts(communication, replace)


class _Mail:
    """What this rank sends to those that run later, and gets from those that ran before."""

    def __init__(self, communication: Communication) -> None:
        self._communication = communication
        self._post = Post()
        #: calls that are being made; those that they make themselves are seen to
        self.inside: list[str] = []

    def takes(self, tensor: Any, group: Any) -> bool:
        """Tell whether the contents of a tensor are worth sending."""
        # of subclasses (DTensor, fake tensors) nothing is read
        is_small = type(tensor) is torch.Tensor and tensor.numel() <= _MAX_NUMBERS
        return is_small and not self.inside and not carrying_objects and is_in(group)

    def leave(self, tensors: list[Any], channel: str) -> None:
        """Leave tensors for ranks that run later: what is in them, if that is known."""
        self._post.leave([self._read(tensor) for tensor in tensors], channel)

    def _read(self, tensor: Any) -> list[Any] | None:
        # results that are made up are none to others, but sizes among them are better than none
        if tensor.dtype not in _SIZES and not self._communication.is_known(tensor):
            return None
        found, is_known = self._communication.read(tensor)
        return found if is_known else None

    def take(self, tensor: Any, source: int | None, channel: str, index: int = 0) -> None:
        """Put into a tensor what a rank has sent, or note that nobody knows."""
        left = self._post.find(source, channel)[0] if source is not None else None
        sent = left[index] if left is not None else None
        if sent is not None and len(sent) == tensor.numel():
            with torch.no_grad():
                numbers = torch.tensor(sent, dtype=tensor.dtype, device="cpu")
                tensor.copy_(numbers.reshape(tensor.shape))
        elif tensor.dtype in _SIZES:
            self._communication.note_unknown(tensor)


def _broadcast(mail: _Mail, replace: _Replace) -> None:
    broadcast = distributed_c10d.broadcast

    @wraps(broadcast)
    def broadcast_numbers(
        tensor: Any, src: Any = None, group: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if not mail.takes(tensor, group):
            return broadcast(tensor, src, group, *args, **kwargs)
        source = find_source(src, kwargs.get("group_src"), group)
        channel = f"{name_group(group)}-numbers"
        if source == dist.get_rank():
            mail.leave([tensor], channel)
        work = broadcast(tensor, src, group, *args, **kwargs)
        if source != dist.get_rank():
            mail.take(tensor, source, channel)
        return work

    replace(broadcast, broadcast_numbers)


def _scatter(mail: _Mail, replace: _Replace) -> None:
    scatter = distributed_c10d.scatter

    @wraps(scatter)
    def scatter_numbers(
        tensor: Any,
        scatter_list: Any = None,
        src: Any = None,
        group: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not mail.takes(tensor, group):
            return scatter(tensor, scatter_list, src, group, *args, **kwargs)
        source = find_source(src, kwargs.get("group_src"), group)
        channel = f"{name_group(group)}-parts"
        if source == dist.get_rank() and scatter_list:
            mail.leave(scatter_list, channel)
        work = scatter(tensor, scatter_list, src, group, *args, **kwargs)
        if source != dist.get_rank():
            mail.take(tensor, source, channel, dist.get_rank(group))
        return work

    replace(scatter, scatter_numbers)


def _send(mail: _Mail, replace: _Replace, name: str) -> None:
    send = getattr(distributed_c10d, name)

    @wraps(send)
    def send_numbers(
        tensor: Any, dst: Any = None, group: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if mail.takes(tensor, group):
            target = find_source(dst, kwargs.get("group_dst"), group)
            mail.leave([tensor], f"{target}-sent")
        with _going_into(mail.inside, name):
            return send(tensor, dst, group, *args, **kwargs)

    replace(send, send_numbers)


def _receive(mail: _Mail, replace: _Replace, name: str) -> None:
    receive = getattr(distributed_c10d, name)

    @wraps(receive)
    def receive_numbers(
        tensor: Any, src: Any = None, group: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        with _going_into(mail.inside, name):
            result = receive(tensor, src, group, *args, **kwargs)
        if mail.takes(tensor, group):
            group_src = kwargs.get("group_src")
            is_named = src is not None or group_src is not None  # otherwise it is any rank
            source = find_source(src, group_src, group) if is_named else None
            mail.take(tensor, source, f"{dist.get_rank()}-sent")
        return result

    replace(receive, receive_numbers)


def _exchange(mail: _Mail, replace: _Replace) -> None:
    """Messages of a batch are delivered when it ends."""
    exchange = distributed_c10d.batch_isend_irecv

    @wraps(exchange)
    def exchange_numbers(p2p_op_list: Any) -> Any:
        taken = [one for one in p2p_op_list if mail.takes(one.tensor, one.group)]
        for one in taken:
            if one.op is dist.isend:
                mail.leave([one.tensor], f"{one.peer}-sent")
        with _going_into(mail.inside, "batch_isend_irecv"):
            result = exchange(p2p_op_list)
        for one in taken:
            if one.op is dist.irecv:
                mail.take(one.tensor, one.peer, f"{dist.get_rank()}-sent")
        return result

    replace(exchange, exchange_numbers)


@contextmanager
def _going_into(inside: list[str], name: str) -> Iterator[None]:
    """Say that a call is made by another one (``recv`` calls ``irecv``), which has seen to it."""
    inside.append(name)
    try:
        yield
    finally:
        inside.pop()


def _note_parts(communication: Communication, replace: _Replace) -> None:
    """Note calls that say how large each rank's part is: what a rank gets, others decide."""
    rotating: list[str] = []

    def noting(function: Any) -> Any:
        names = list(signature(function).parameters)

        @wraps(function)
        def exchange(*args: Any, **kwargs: Any) -> Any:
            said = {**dict(zip(names, args)), **kwargs}
            if not rotating and (said.get("output_split_sizes") or said.get("input_split_sizes")):
                communication.has_unequal_parts = True
            return function(*args, **kwargs)

        return exchange

    def change(module: Any) -> None:
        for name in ("all_to_all_single", "all_to_all_single_autograd"):
            if hasattr(module, name):
                setattr(module, name, noting(getattr(module, name)))
        rotate = getattr(module, "permute_tensor", None)
        if rotate is None:
            return

        @wraps(rotate)
        def permute_tensor(*args: Any, **kwargs: Any) -> Any:
            # a ring by an all-to-all: each rank has one whole part for another, all are as large
            with _going_into(rotating, "permute_tensor"):
                return rotate(*args, **kwargs)

        module.permute_tensor = permute_tensor

    replace(distributed_c10d.all_to_all_single, noting(distributed_c10d.all_to_all_single))
    when_imported("torch.distributed._functional_collectives", change)
    when_imported("torch.distributed.nn.functional", change)
