"""What is changed in programs that start a job's processes, each with its reason.

They run as they are, with their own arguments; only where they would reach for other machines or
start processes that nobody needs, they are told something else. They are:

    torchrun       and all that is built on it: torch.distributed.run, .launch, accelerate
    mp.spawn       torch.multiprocessing, in the job itself
    deepspeed      its runner
    Lightning      which starts the job's script again for each process
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlparse

from .gate import (
    RankPlace,
    asked_for,
    check_layout,
    chosen_rank,
    expect_ranks,
    join_group,
    launch,
    pass_or_wait,
    tell_world,
)
from .layout import Layout
from .noticing import on_import

_RUNNER = "deepspeed.launcher.runner"
_API = "torch.distributed.launcher.api"
_LIGHTNING = (
    "lightning.fabric.strategies.launchers.subprocess_script",
    "lightning.pytorch.strategies.launchers.subprocess_script",
    "lightning_fabric.strategies.launchers.subprocess_script",
    "pytorch_lightning.strategies.launchers.subprocess_script",
)


def notice_launchers() -> None:
    """Change them as they are imported."""
    on_import(_API, _change_torchrun)
    on_import(_RUNNER, _change_deepspeed)
    for name in _LIGHTNING:
        on_import(name, _change_lightning)


def torch_is_there(torch: Any) -> None:
    """Change what comes with torch itself."""
    _change_spawn(sys.modules.get("torch.multiprocessing.spawn"), torch)
    _change_groups(torch)


def _change_torchrun(api: Any) -> None:
    """Have the agent believe in one node, which waits for no other, and start over nothing."""
    launch_agent = api.launch_agent

    def launch_on_one_node(config: Any, *args: Any, **kwargs: Any) -> Any:
        if chosen_rank() is None:
            return launch_agent(config, *args, **kwargs)
        _, asked = asked_for()
        is_elastic = config.min_nodes != config.max_nodes
        fits = is_elastic and config.min_nodes <= asked <= config.max_nodes
        layout = Layout(config.nproc_per_node, asked if fits else config.max_nodes)
        check_layout(layout, "torchrun")
        launch(layout, "torchrun")
        alone = replace(
            config,
            min_nodes=1,
            max_nodes=1,
            max_restarts=0,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            rdzv_configs={},
        )
        return launch_agent(alone, *args, **kwargs)

    api.launch_agent = launch_on_one_node


def _change_deepspeed(runner: Any) -> None:
    """Have the runner start the processes of one node, here, whatever the hostfile says."""
    parse_args, fetch_hostfile = runner.parse_args, runner.fetch_hostfile
    encode_world_info = runner.encode_world_info
    parsed: list[Any] = []

    def parse_without_ssh(args: Any = None) -> Any:
        found = parse_args(args)
        if chosen_rank() is not None:
            found.no_ssh = found.no_ssh_check = True
            found.force_multi = False
            found.node_rank = 0
            found.master_addr = "127.0.0.1"
            parsed.append(found)
            expect_ranks()  # now: the variables of its processes are copied before it counts them
        return found

    def fetch_with_nodes(path: Any) -> Any:
        found = fetch_hostfile(path)
        nproc, nnodes = asked_for()
        if found or nnodes < 2 or chosen_rank() is None:
            return found
        count = nproc or runner.get_accelerator().device_count()
        return {f"node-{number}": count for number in range(nnodes)}

    def encode_for_one_node(resources: Any) -> Any:
        chosen = chosen_rank()
        if chosen is not None:
            slots = [len(found) for found in resources.values()]
            layout = Layout(max(slots), len(slots))
            check_layout(layout, "deepspeed")
            tell_world(layout, "deepspeed", sum(slots))
            parsed[-1].node_rank = _node_of(chosen, slots)
        return encode_world_info(resources)

    runner.parse_args = parse_without_ssh
    runner.fetch_hostfile = fetch_with_nodes
    runner.encode_world_info = encode_for_one_node


def _node_of(rank: int, slots: list[int]) -> int:
    node = 0
    while node < len(slots) - 1 and rank >= slots[node]:
        rank -= slots[node]
        node += 1
    return node


def _change_lightning(module: Any) -> None:
    """Have the processes that Lightning starts know which rank they are, as early as others do."""
    kind = module._SubprocessScriptLauncher
    call_children_scripts = kind._call_children_scripts

    def call_and_tell(self: Any) -> Any:
        chosen = chosen_rank()
        if chosen is None or self.num_processes * self.num_nodes <= 1:
            return call_children_scripts(self)
        layout = Layout(self.num_processes, self.num_nodes)
        check_layout(layout, "Lightning")
        launch(layout, "Lightning")
        os.environ["NODE_RANK"] = str(chosen // layout.nproc)
        try:
            return call_children_scripts(self)
        finally:
            os.environ.pop("MEMGATE_LAYOUT", None)

    kind._call_children_scripts = call_and_tell


def _change_spawn(spawn: Any, torch: Any) -> None:
    """Have children that are other ranks wait in a fork, which takes no time and no memory."""
    from multiprocessing.popen_fork import Popen
    from multiprocessing.process import BaseProcess

    if spawn is None:
        return
    start_processes, start = spawn.start_processes, BaseProcess.start
    counts: list[int] = []

    def start_ranks(fn: Any, args: Any = (), nprocs: int = 1, *others: Any, **named: Any) -> Any:
        if chosen_rank() is not None and nprocs > 1:
            check_layout(Layout(nprocs, 0), "mp.spawn")
            counts.append(nprocs)
        return start_processes(fn, args, nprocs, *others, **named)

    def start_rank(process: Any) -> None:
        chosen = chosen_rank()
        if counts and chosen is not None and getattr(process, "_target", None) is spawn._wrap:
            index, count = process._args[1], counts[-1]
            place = RankPlace(index, count)
            if index == chosen % count:
                process._args = (place, spawn._wrap, *process._args)
                process._target = run_rank
            else:
                process._Popen = Popen
                process._target, process._args = pass_or_wait, (place, -1)
        start(process)

    spawn.start_processes = torch.multiprocessing.start_processes = start_ranks
    BaseProcess.start = start_rank  # type: ignore[method-assign, assignment]


def run_rank(place: RankPlace, target: Any, *args: Any) -> None:
    """In a process that the job has started: be the rank that runs."""
    pass_or_wait(place, place.rank)
    target(*args)


def _change_groups(torch: Any) -> None:
    """Have processes wait where they join a group, if nothing has said before which they are."""
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available():
        return
    init_process_group = distributed.init_process_group

    def join_process_group(*args: Any, **kwargs: Any) -> Any:
        join_group(_find_place(args, kwargs))
        return init_process_group(*args, **kwargs)

    distributed.init_process_group = join_process_group
    distributed.distributed_c10d.init_process_group = join_process_group


def _find_place(args: tuple[Any, ...], kwargs: dict[str, Any]) -> RankPlace:
    """Return which process of how many joins a group, by what it says or by its variables."""
    names = ("backend", "init_method", "timeout", "world_size", "rank")
    said = {**dict(zip(names, args)), **kwargs}
    query = parse_qs(urlparse(said.get("init_method") or "").query)
    found = []
    for name in ("rank", "world_size"):
        given = said.get(name, -1)
        if given is None or given < 0:
            given = int(query.get(name, [os.environ.get(name.upper()) or -1])[0])
        found.append(given)
    return RankPlace(*found)
