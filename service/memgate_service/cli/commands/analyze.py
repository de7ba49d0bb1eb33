"""``memgate analyze``: a profiler trace, on a GPU it has never seen."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.tree import Tree

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.capacity import AMPLE_BYTES
from memgate.doubts import count_problems, tell_diagnostics
from memgate.errors import InputError
from memgate.gpus import parse_gpu
from memgate.layers import LayerNode, find_layers, to_document
from memgate.mistakes import unknown_name
from memgate.pipeline import estimate_timeline, make_timeline
from memgate.report import Estimate
from memgate.rules import RULES, Device
from memgate.timeline import Timeline
from memgate.trace import Trace, read_trace
from memgate.units import format_size
from memgate_service.cli.commands.estimate import EXIT_STATUS, read_gpu, tell_estimate
from memgate_service.cli.commands.options import ApiKey, AsJson, Gpu, Picture, Server
from memgate_service.cli.commands.remote import connect, refuse
from memgate_service.cli.plots import plot_timeline, prepare_picture
from memgate_service.cli.printing import print_estimate

#: of the tree of layers: deeper ones, and smaller ones, are left out
_MAX_DEPTH = 4
_MIN_SHARE = 0.01


def analyze_command(
    path: Annotated[
        Path, typer.Argument(metavar="TRACE", help="Trace of torch.profiler, .json or .json.gz.")
    ],
    gpu: Gpu,
    allocator: Annotated[str, typer.Option(help="A PYTORCH_ALLOC_CONF string.")] = "",
    without: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="A rule to leave out; repeatable.")
    ] = None,
    plot: Picture = None,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Would the job of this CPU trace fit on that GPU? Exit status: 0 admit, 3 reject, 4 uncertain.

    The trace runs no code: it is what torch.profiler saw of a training job on a CPU, with memory,
    stacks and shapes. A server (--server) is sent the file.

    Example: memgate analyze tests/data/traces/tiny-torch-2.14.json.gz --gpu rtx-3060
    """
    if server:
        refuse(server, without=bool(without), plot=plot is not None)
        with connect(server, api_key, silent=as_json) as client:
            tell_estimate(
                client.estimate(path, read_gpu(gpu), allocator=allocator), as_json=as_json
            )
    _check_rules(without or [])
    plot = prepare_picture(plot) if plot is not None else None
    start = time.perf_counter()
    target = parse_gpu(read_gpu(gpu))
    device = Device(compute_capability=target.gpu.compute_capability)
    timeline = make_timeline(_read(path), device, without=without or [])
    traced_at = time.perf_counter()
    answer = estimate_timeline(
        timeline, target, alloc_conf=allocator, engine="profile", runtime="", versions={}
    )
    now = time.perf_counter()
    seconds = {"trace": traced_at - start, "replay": now - traced_at, "total": now - start}
    timings = {name: round(value * 1000) for name, value in seconds.items()}
    answer = answer.model_copy(update={"timings_ms": timings})
    ample = replay(timeline, parse_alloc_conf(allocator), AMPLE_BYTES)
    layers = find_layers(timeline, ample)
    if plot is not None:
        plot_timeline(timeline, parse_alloc_conf(allocator), target, title=path.name, path=plot)
    _tell(answer, timeline, layers, as_json=as_json)
    raise typer.Exit(EXIT_STATUS[answer.decision])


def _check_rules(wanted: list[str]) -> None:
    names = {rule.__name__ for rule in RULES}
    for name in wanted:
        if name not in names:
            mistake = unknown_name("rule", name, sorted(names), rule="there is no such rule")
            raise InputError.from_mistakes(mistake)


def _read(path: Path) -> Trace:
    try:
        with path.open("rb") as stream:
            return read_trace(stream)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except InputError as error:
        raise type(error)(f"{path}: {error.message}") from None


def _tell(answer: Estimate, timeline: Timeline, layers: LayerNode, *, as_json: bool) -> None:
    if as_json:
        more = {"layers": to_document(layers), "diagnostics": count_problems(timeline)}
        typer.echo(json.dumps(answer.model_dump() | more))
        return
    print_estimate(answer)
    if unexplained := tell_diagnostics(timeline):
        Console(highlight=False).print(f"not explained: {unexplained}")
    tree = Tree(f"by layer, of {format_size(layers.size_bytes)}")
    _grow(tree, layers, layers.size_bytes * _MIN_SHARE, _MAX_DEPTH)
    Console(highlight=False).print(tree)


def _grow(tree: Tree, node: LayerNode, least: float, depth: int) -> None:
    for child in node.by_size():
        if child.size_bytes >= least and depth:
            branch = tree.add(f"{child.name}  {format_size(child.size_bytes)}")
            _grow(branch, child, least, depth - 1)
