"""``memgate analyze``: a trace, a memory snapshot or a timeline, on a GPU it has never seen."""

from __future__ import annotations

import json
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
from memgate.layers import Layer, find_layers
from memgate.mistakes import unknown_name
from memgate.report import Estimate
from memgate.rules import RULES
from memgate.units import format_size
from memgate_service.cli.answer_files import AnswerFiles
from memgate_service.cli.commands.options import ApiKey, AsJson, CurveFile, Gpu, Picture, Server
from memgate_service.cli.exit_status import EXIT_STATUS
from memgate_service.cli.printing import print_estimate, show_estimate
from memgate_service.cli.reading import open_upload, read_gpu
from memgate_service.cli.remote import connect, refuse
from memgate_worker.local import LocalAnswer, estimate_upload

#: of the tree of layers: deeper and smaller ones are left out
_MAX_DEPTH = 4
_MIN_SHARE = 0.01


def analyze_command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Trace of torch.profiler, memory snapshot of PyTorch, or timeline file; plain or"
            " gzip; - reads standard input.",
        ),
    ],
    gpu: Gpu,
    allocator: Annotated[str, typer.Option(help="A PYTORCH_ALLOC_CONF string.")] = "",
    without: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="A rule to leave out; repeatable.")
    ] = None,
    device: Annotated[
        int | None,
        typer.Option(min=0, help="Of several in the file; otherwise the worst decides."),
    ] = None,
    inference: Annotated[
        bool, typer.Option("--inference", help="The job of a trace does not train.")
    ] = False,
    plot: Picture = None,
    curve: CurveFile = None,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Would the job of this file fit on that GPU? Exit status: 0 admit, 3 reject, 4 uncertain.

    No code is run. A trace is what torch.profiler saw of a training job, on a CPU or on a GPU, with
    profile_memory=True. A snapshot is what torch.cuda.memory._dump_snapshot wrote on a GPU; it is
    read with the allocator's settings in it unless --allocator gives others, and so is a timeline
    file. A trace of a forward pass alone is admitted only with --inference.

    Example: memgate analyze trace.json.gz --gpu rtx-3060
    """
    if server:
        refuse(server, without=bool(without), plot=plot is not None, curve=curve is not None)
        with open_upload(path) as stream, connect(server, api_key, silent=as_json) as client:
            trace = stream.read()
            answer: Estimate = client.estimate(
                trace, read_gpu(gpu), allocator=allocator, device=device, inference=inference
            )
        show_estimate(answer, as_json=as_json, server=server)
    else:
        _check_rules(without or [])
        target = parse_gpu(read_gpu(gpu))
        files = AnswerFiles.prepare(plot=plot, curve=curve)
        with open_upload(path) as stream:
            found = estimate_upload(
                stream,
                target,
                alloc_conf=allocator,
                without=without or [],
                device=device,
                inference=inference,
            )
        files.write(found, target, title=path.name)
        answer = _show(found, as_json=as_json)
    raise typer.Exit(EXIT_STATUS[answer.decision])


def _check_rules(wanted: list[str]) -> None:
    names = {rule.__name__ for rule in RULES}
    for name in wanted:
        if name not in names:
            mistake = unknown_name("rule", name, sorted(names), rule="there is no such rule")
            raise InputError.from_mistakes(mistake)


def _show(found: LocalAnswer, *, as_json: bool) -> Estimate:
    """Print and return an answer; with what each layer holds, and what could not be explained."""
    timeline = found.timeline
    ample = replay(timeline, parse_alloc_conf(found.alloc_conf), AMPLE_BYTES)
    layers = find_layers(timeline, ample)
    if as_json:
        more = {"layers": layers.model_dump(), "diagnostics": count_problems(timeline)}
        typer.echo(json.dumps(found.estimate.model_dump() | more))
        return found.estimate
    print_estimate(found.estimate)
    if unexplained := tell_diagnostics(timeline):
        Console(highlight=False).print(f"not explained: {unexplained}")
    if layers.children:  # a snapshot names none
        tree = Tree(f"by layer, of {format_size(layers.size_bytes)}")
        _grow(tree, layers, layers.size_bytes * _MIN_SHARE, _MAX_DEPTH)
        Console(highlight=False).print(tree)
    return found.estimate


def _grow(tree: Tree, layer: Layer, least: float, depth: int) -> None:
    for child in layer.children:
        if child.size_bytes >= least and depth:
            branch = tree.add(f"{child.name}  {format_size(child.size_bytes)}")
            _grow(branch, child, least, depth - 1)
