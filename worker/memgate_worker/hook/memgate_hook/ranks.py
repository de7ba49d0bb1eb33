"""Lets one process run as one rank of many: each change of ``torch.distributed``, and its reason.

NCCL's groups are PyTorch's own, on a ``libnccl`` of ours in which every collective is done at once
(``native/nccl.cpp``). What is left is what would wait for other processes: the store in which they
find each other (``rank_store``), and gloo's groups (``rank_gloo``).

Groups of one process are left as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import wraps
from importlib import import_module
from typing import Any, Callable
from urllib.parse import parse_qs, urlparse

import torch

from .communication import Communication
from .later_imports import when_imported
from .phantom import Phantom

#: as ``torchrun`` names them
_RANK, _WORLD_SIZE = "RANK", "WORLD_SIZE"


def stand_for_all_ranks(phantom: Phantom, communication: Communication) -> None:
    """From now on, process groups of several ranks need nobody else."""
    if not torch.distributed.is_available():
        return
    _keep_watchers_out_of_the_store()
    _answer_where_ranks_meet()
    _answer_given_stores(communication)
    _take_tcp_stores()
    _run_gloo_alone()
    _say_how_large_splits_are(phantom)
    _share_objects(communication)
    _agree_with_oneself()
    _receive_own_state()
    _divide_lists_once()


def _keep_watchers_out_of_the_store() -> None:
    """NCCL's monitor asks the store whether another rank is in trouble: there is none.

    It asks from a thread of its own, and our store is Python's: a process that ends would have to
    wait for it.
    """
    os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
    os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"


def _answer_where_ranks_meet() -> None:
    """Every way in which ranks find each other (``env://``, ``tcp://``, ``file://``) waits."""
    # a function of the same name hides the module
    handlers = import_module("torch.distributed.rendezvous")._rendezvous_handlers
    for scheme in ("env", "tcp", "file"):
        handlers[scheme] = _meet_alone(handlers[scheme])


def _meet_alone(meet: Callable[..., Any]) -> Callable[..., Any]:
    from .rank_store import RankStore

    @wraps(meet)
    def meet_alone(url: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        said = {
            name: int(values[0])
            for name, values in parse_qs(urlparse(url).query).items()
            if name in ("rank", "world_size")
        }
        rank = said.get("rank", _number(_RANK))
        world_size = said.get("world_size", _number(_WORLD_SIZE))
        if rank is None or world_size is None or world_size < 2:
            yield from meet(url, *args, **kwargs)
        else:
            yield RankStore(rank, world_size), rank, world_size

    return meet_alone


def _number(variable: str) -> int | None:
    value = os.environ.get(variable, "")
    return int(value) if value.isdigit() else None


def _answer_given_stores(communication: Communication) -> None:
    """A store that the job brings along has nobody else in it, either."""
    from torch.distributed import distributed_c10d

    from .rank_store import RankStore

    init = distributed_c10d.init_process_group

    @wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        world_size, rank = kwargs.get("world_size", -1), kwargs.get("rank", -1)
        given = kwargs.get("store")
        if given is not None and world_size > 1 and not isinstance(given, RankStore):
            kwargs["store"] = RankStore(rank, world_size)
        result = init(*args, **kwargs)
        communication.note_rank(torch.distributed.get_rank(), torch.distributed.get_world_size())
        return result

    _replace(init, init_process_group)


def _take_tcp_stores() -> None:
    """A ``TCPStore`` of several ranks connects to the first one, which waits for the others."""
    from torch.distributed import TCPStore

    from .rank_store import LoneTCPStore

    class LoneOrNot(type(TCPStore)):  # type: ignore[misc]
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            names = ("host_name", "port", "world_size", "is_master")
            said = {**dict(zip(names, args)), **kwargs}
            world_size = said.get("world_size") or 1
            if cls is not shown or world_size < 2 or _is_a_launcher():
                return TCPStore(*args, **kwargs)
            rank = _number(_RANK)
            rank = (0 if said.get("is_master") else 1) if rank is None else rank
            return LoneTCPStore(said["host_name"], said["port"], world_size, rank)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, (TCPStore, LoneTCPStore))

    shown = LoneOrNot(
        "TCPStore", (), {"__doc__": TCPStore.__doc__, "__module__": TCPStore.__module__}
    )
    _replace(TCPStore, shown)


def _is_a_launcher() -> bool:
    """Launchers have stores among themselves, one for each machine."""
    return _RANK not in os.environ and "torch.distributed.elastic.agent.server" in sys.modules


def _run_gloo_alone() -> None:
    """Gloo's groups connect every rank with every other one when they are made."""
    from torch.distributed import distributed_c10d

    from .rank_gloo import make_gloo_of

    gloo = getattr(distributed_c10d, "ProcessGroupGloo", None)
    if gloo is not None:
        _replace(gloo, make_gloo_of(gloo))


def _say_how_large_splits_are(phantom: Phantom) -> None:
    """NCCL asks all ranks which of them are in a new communicator; PyTorch knows."""
    from torch.distributed import distributed_c10d

    make = distributed_c10d._new_process_group_helper

    @wraps(make)
    def make_group(group_size: int, *args: Any, **kwargs: Any) -> Any:
        phantom.expect_split(group_size)
        try:
            return make(group_size, *args, **kwargs)
        finally:
            phantom.expect_split(0)

    distributed_c10d._new_process_group_helper = make_group
    split = getattr(distributed_c10d, "split_group", None)  # since 2.4
    if split is None:
        return

    @wraps(split)
    def split_group(
        parent_pg: Any = None, split_ranks: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        rank = torch.distributed.get_rank(parent_pg)
        own = next((ranks for ranks in split_ranks or () if rank in ranks), ())
        phantom.expect_split(len(own))
        try:
            return split(parent_pg, split_ranks, *args, **kwargs)
        finally:
            phantom.expect_split(0)

    _replace(split, split_group)


def _share_objects(communication: Communication) -> None:
    """Python objects and sizes are received from ranks that do not exist."""
    from .rank_numbers import share_numbers
    from .rank_objects import accept_plans, plan_alone, share_objects_with_oneself

    share_objects_with_oneself(communication, _replace)
    share_numbers(communication, _replace)
    when_imported("torch.distributed.checkpoint.utils", plan_alone)
    when_imported("torch.distributed.checkpoint.default_planner", accept_plans)


def _agree_with_oneself() -> None:
    """Stages of a pipeline ask the ones before and after them for shapes."""
    from .rank_pipelines import agree_with_oneself

    when_imported("torch.distributed.pipelining.stage", agree_with_oneself)


def _receive_own_state() -> None:
    """ZeRO and FSDP compare themselves with other ranks, and collect their states."""
    from .rank_optimizers import compare_with_oneself, know_states_of_others, receive_own_state

    when_imported("torch.distributed.fsdp._optim_utils", know_states_of_others)
    when_imported("torch.distributed.optim.zero_redundancy_optimizer", receive_own_state)
    when_imported("deepspeed.runtime.zero.utils", compare_with_oneself)


def _divide_lists_once() -> None:
    """DTensor takes longer than everything else together, if there are many parameters."""
    from .rank_sharding import divide_lists_once

    when_imported("torch.distributed.tensor._sharding_prop", divide_lists_once)


def _replace(old: Any, new: Any) -> None:
    """Put something in the place of what modules of ``torch.distributed`` have by its name."""
    name = old.__name__
    for module in [
        module for key, module in sys.modules.items() if key.startswith("torch.distributed")
    ]:
        if getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)
