"""``memgate convert``: the config of a trainer becomes a job spec."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from memgate.convert import Beside, ConfigKind, Conversion, describe_conversion, write_spec
from memgate_service.cli.configs import convert_file
from memgate_service.cli.exit_status import UNCERTAIN
from memgate_service.cli.spec_files import check_new_file, write_new_file


def convert_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A config, JSON or YAML ('-': from stdin).")
    ],
    kind: Annotated[
        ConfigKind | None, typer.Option(help="Whose config it is, where its keys do not say it.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model, instead of the config's.")
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens, where the data decides.")
    ] = None,
    world_size: Annotated[
        int | None, typer.Option(min=1, help="GPUs that the job is divided over.")
    ] = None,
    deepspeed: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The DeepSpeed file, if there is one.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the spec into a new file."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: the spec, and every field.")
    ] = False,
) -> None:
    """Turn the config of a trainer into a job spec.

    Configs of transformers (TrainingArguments with a model), TRL, axolotl, LLaMA-Factory and
    torchtune. Every field that can matter for memory and is not in the spec is named. Nothing is
    run or downloaded. Exit status: 0 if all that matters is in the spec, 4 if something is not.

    Example: memgate convert qlora.yml -o job.yaml

    Example: memgate convert sft.yaml --deepspeed zero2.json --world-size 8
    """
    if output is not None:
        check_new_file(output)
    beside = Beside(model=model, sequence_length=sequence_length, world_size=world_size)
    conversion = convert_file(file, kind=kind, beside=beside, deepspeed=deepspeed)
    _print(conversion, output, as_json=as_json)
    if not conversion.is_whole:
        raise typer.Exit(UNCERTAIN)


def _print(conversion: Conversion, output: Path | None, *, as_json: bool) -> None:
    said = describe_conversion(conversion)
    text = write_spec(conversion.spec, said)
    if output is not None:
        is_json = output.suffix == ".json"
        write_new_file(output, f"{json.dumps(conversion.spec, indent=2)}\n" if is_json else text)
    if as_json:
        typer.echo(json.dumps(_as_document(conversion)))
        return
    if output is None:
        typer.echo(text, nl=False)
    for sentence in said:
        typer.echo(sentence, err=True)
    typer.echo(_count(conversion), err=True)


def _count(conversion: Conversion) -> str:
    unused = len(conversion.unused)
    used = sum(1 for field in conversion.fields if field.use == "used")
    harmless = len(conversion.fields) - used - unused
    return (
        f"{conversion.kind}: {len(conversion.fields)} fields: {used} used, {harmless} cannot"
        f" matter, {unused} can matter and {'is' if unused == 1 else 'are'} not used"
    )


def _as_document(conversion: Conversion) -> dict[str, object]:
    return {
        "kind": conversion.kind,
        "spec": conversion.spec,
        "is_whole": conversion.is_whole,
        "fields": [asdict(field) for field in conversion.fields],
        "assumptions": [asdict(one) for one in conversion.assumptions],
    }
