"""``memgate init``: a first job spec, of a script, of a config, or by five questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from memgate.convert import Beside, describe_conversion, write_spec
from memgate.errors import InputError
from memgate.first_spec import QUESTIONS, Findings, read_script
from memgate.first_spec.source import MAX_SOURCE_LENGTH
from memgate.given_files import open_given_file
from memgate_service.cli.asking import ask_all, read_answers
from memgate_service.cli.configs import convert_file
from memgate_service.cli.exit_status import UNCERTAIN
from memgate_service.cli.spec_files import check_new_file, write_new_file

_STDOUT = Path("-")
_FORCE = "name a new one, or add --force"


def init_command(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FROM]",
            help="A training script (.py), or a config of a trainer; without it, questions.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the spec goes ('-': out).")
    ] = Path("job.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    model: Annotated[
        str | None, typer.Option(help="A public name, torchvision:NAME or timm:NAME.")
    ] = None,
    input_size: Annotated[
        str | None,
        typer.Option("--input", metavar="SIZE", help="Tokens; or 224, or 3x224x224."),
    ] = None,
    batch_size: Annotated[str | None, typer.Option(metavar="N", help="Samples in a batch.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Such as AdamW.")] = None,
    precision: Annotated[str | None, typer.Option(help="Such as amp-bf16.")] = None,
) -> None:
    """Write a first job spec: of a script or a config, or by five questions.

    A script is read, never run: its options with their defaults, and its calls of torchvision,
    timm, transformers, peft and torch.optim. What was found, guessed and not found is in the
    file as comments. Exit status: 0 if everything was found, 4 if something is left to you.

    Example: memgate init train.py

    Example: memgate init --model gpt2 --input 1024 --batch-size 8
    """
    is_file = output != _STDOUT
    if is_file:
        check_new_file(output, may_replace=force, instead=_FORCE)
    given = dict(zip(QUESTIONS, (model, input_size, batch_size, optimizer, precision), strict=True))
    spec, comments, is_whole = _make(source, given)
    text = write_spec(spec, comments)
    if is_file:
        write_new_file(output, text, may_replace=force, instead=_FORCE)
        typer.echo(f"{output}: written; memgate estimate {output} --gpu GPU", err=True)
        typer.echo("for your editor: memgate schema > job.schema.json", err=True)
    else:
        typer.echo(text, nl=False)
    for comment in comments:
        typer.echo(comment, err=True)
    if not is_whole:
        raise typer.Exit(UNCERTAIN)


def _make(
    source: Path | None, given: dict[str, str | None]
) -> tuple[dict[str, Any], list[str], bool]:
    if source is None:
        return ask_all(given), [], True
    if source.suffix == ".py":
        findings = _read_script(source, given)
        return findings.ordered, findings.comments, findings.is_whole
    answers = read_answers(given, {})
    length = answers.get("input", {}).get("sequence_length")
    beside = Beside(model=answers.get("model", {}).get("name"), sequence_length=length)
    conversion = convert_file(source, kind=None, beside=beside)
    spec = dict(conversion.spec) | answers
    return spec, describe_conversion(conversion), conversion.is_whole


def _read_script(path: Path, given: dict[str, str | None]) -> Findings:
    with open_given_file(path) as stream:
        content = stream.read(4 * MAX_SOURCE_LENGTH + 1)
        try:
            findings = read_script(content.decode())
        except UnicodeDecodeError as error:
            raise InputError(f"this is not UTF-8, from byte {error.start} on") from None
    for name, value in read_answers(given, findings.spec.get("model", {})).items():
        findings.spec[name] = value
        findings.notes[name] = f"as given: --{name.replace('_', '-').removesuffix('-size')}"
    return findings
