"""Options that several commands share, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Gpu = Annotated[
    str,
    typer.Option(
        help="A GPU of the catalogue (see: memgate gpus), or"
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
