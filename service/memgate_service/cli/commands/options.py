"""Options that several commands share, each defined once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Until(StrEnum):
    """How far a job is watched."""

    EVALUATION = "evaluation"
    END = "end"


Gpu = Annotated[
    str,
    typer.Option(
        help="A GPU of the catalogue (see: memgate gpus), a cloud's machine type, or"
        """ '{"memory_bytes": N, "compute_capability": "8.6"}'."""
    ),
]
RuntimeName = Annotated[
    str | None,
    typer.Option(help="Library versions to use, instead of the spec's; see: memgate runtimes."),
]
Timeout = Annotated[
    float, typer.Option(min=1, metavar="SECONDS", help="The longest the job may run.")
]
HostMemory = Annotated[
    float, typer.Option(min=0.1, metavar="GIB", help="The most host memory it may take.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGS...]", help="Passed to the script.")
]
Picture = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw memory over time (png, svg or pdf).")
]
CurveFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write memory over time as data (csv or json); a new file."),
]
AllocatorSettings = Annotated[
    str, typer.Option(help="A PYTORCH_ALLOC_CONF string, instead of the file's own.")
]
EngineChoice = Annotated[str, typer.Option(help="auto, phantom or profile.")]
Server = Annotated[
    str | None,
    typer.Option(metavar="URL", envvar="MEMGATE_URL", help="Ask this server, not a local engine."),
]
ApiKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", envvar="MEMGATE_API_KEY", help="API key for the server."),
]

CommandSteps = Annotated[
    int | None,
    typer.Option(min=1, help="Stop after so many training steps, whatever follows."),
]
NumProcesses = Annotated[
    int | None,
    typer.Option(
        "--nproc",
        min=1,
        max=126,
        metavar="N",
        help="Processes on a node, each with a GPU, where the command does not say itself.",
    ),
]
NumNodes = Annotated[
    int | None,
    typer.Option(
        "--nnodes", min=1, metavar="M", help="Nodes, where the command does not say itself."
    ),
]
TimelineFile = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Keep the run as a timeline file."),
]
WatchUntil = Annotated[
    Until | None, typer.Option(help="Go on until there was an evaluation, or to the end.")
]
WatchSeconds = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="How long to wait for an evaluation after the first training steps.",
    ),
]
LongestBatch = Annotated[
    str | None,
    typer.Option(
        "--longest",
        metavar="N|data",
        help="Where lengths vary: answer for batches of this length, or of the data's longest.",
    ),
]
KeptFolder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Keep what the job wrote, in a new folder.")
]
ShowOutput = Annotated[
    bool, typer.Option("--show-output", help="Show what the command prints, on stderr.")
]
NoEvaluation = Annotated[
    bool, typer.Option("--no-evaluation", help="The job has none: do not wait for one.")
]
IgnoreCompile = Annotated[
    bool, typer.Option("--ignore-compile", help="Answer for the job without torch.compile.")
]
Online = Annotated[
    bool, typer.Option("--online", help="Let the job report, download and upload as usual.")
]
AllowWrites = Annotated[
    bool, typer.Option("--allow-writes", help="Run it even where its files cannot be kept apart.")
]
