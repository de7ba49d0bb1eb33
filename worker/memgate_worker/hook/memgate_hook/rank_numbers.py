"""Small tensors of integers between ranks: sizes, most likely, that a rank cannot make up.

A tensor from a rank that does not exist has the contents that were there before, or made-up ones
(``native/delivery.cpp``). Where the sender was run earlier in the same run, what it sent is put in
their place. Parts of unequal size between all ranks depend on all of them; that is noted.
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
from .rank_post import Post, find_source, is_in, name_group

_Replace = Callable[[Any, Any], None]

#: more are no sizes
_MAX_NUMBERS = 4096
#: bytes are objects, or the state of random numbers
_SIZES = {torch.int16, torch.int32, torch.int64}


def share_numbers(communication: Communication, replace: _Replace) -> None:
    """Replace the calls that send such tensors; ``replace`` puts one in the other's place."""
    post = Post()
    _broadcast(post, replace)
    inside: list[str] = []
    for send, receive in (("isend", "irecv"), ("send", "recv")):
        _send(post, replace, send, inside)
        _receive(post, replace, receive, inside)
    _note_parts(communication, replace)


def _broadcast(post: Post, replace: _Replace) -> None:
    broadcast = distributed_c10d.broadcast

    @wraps(broadcast)
    def broadcast_numbers(
        tensor: Any, src: Any = None, group: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if not _has_sizes(tensor) or not is_in(group):
            return broadcast(tensor, src, group, *args, **kwargs)
        source, channel = find_source(src, kwargs.get("group_src"), group), name_group(group)
        if source == dist.get_rank():
            post.leave(tensor.tolist(), f"{channel}-numbers")
        work = broadcast(tensor, src, group, *args, **kwargs)
        if source != dist.get_rank():
            _take(tensor, post, source, f"{channel}-numbers")
        return work

    replace(broadcast, broadcast_numbers)


def _send(post: Post, replace: _Replace, name: str, inside: list[str]) -> None:
    send = getattr(distributed_c10d, name)

    @wraps(send)
    def send_numbers(
        tensor: Any, dst: Any = None, group: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if not inside and _has_sizes(tensor) and is_in(group):
            post.leave(tensor.tolist(), f"{find_source(dst, kwargs.get('group_dst'), group)}-sent")
        with _going_into(inside, name):
            return send(tensor, dst, group, *args, **kwargs)

    replace(send, send_numbers)


def _receive(post: Post, replace: _Replace, name: str, inside: list[str]) -> None:
    receive = getattr(distributed_c10d, name)

    @wraps(receive)
    def receive_numbers(
        tensor: Any, src: Any = None, group: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        with _going_into(inside, name):
            result = receive(tensor, src, group, *args, **kwargs)
        if not inside and _has_sizes(tensor) and is_in(group):
            source = find_source(src, kwargs.get("group_src"), group)
            _take(tensor, post, source, f"{dist.get_rank()}-sent")
        return result

    replace(receive, receive_numbers)


@contextmanager
def _going_into(inside: list[str], name: str) -> Iterator[None]:
    """Say that a call is made by another one (``recv`` calls ``irecv``), which has seen to it."""
    inside.append(name)
    try:
        yield
    finally:
        inside.pop()


def _take(tensor: Any, post: Post, source: int, channel: str) -> None:
    found, is_known = post.find(source, channel)
    if is_known:
        sent = torch.tensor(found, dtype=tensor.dtype, device="cpu")
        if sent.numel() == tensor.numel():
            with torch.no_grad():
                tensor.copy_(sent.reshape(tensor.shape))


def _has_sizes(tensor: Any) -> bool:
    # of subclasses (DTensor, fake tensors) nothing is read
    return (
        type(tensor) is torch.Tensor and tensor.dtype in _SIZES and tensor.numel() <= _MAX_NUMBERS
    )


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
