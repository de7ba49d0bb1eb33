"""``memgate policy``: check a policy of a gate, and see what it says about a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from memgate.errors import InputError
from memgate_service.admission.core.rules import (
    ACTIONS,
    Mode,
    PolicyChoice,
    PolicyDocument,
    Subject,
    parse_policy,
    resolve,
)

policy_app = typer.Typer(
    name="policy",
    no_args_is_help=True,
    help="Check the policy of a gate, and see which of its rules is about a job.",
)

PolicyPath = Annotated[Path, typer.Argument(metavar="FILE", help="A policy, JSON.")]


@policy_app.command("check")
def check_command(path: PolicyPath) -> None:
    """Say whether a policy can be read, and what is in it.

    Example: memgate policy check /etc/slurm/memgate.policy.json
    """
    document = _read(path)
    mode = document.mode or Mode.ENFORCE
    rules, exempt = len(document.rules), len(document.exempt)
    typer.echo(f"{path} is right: {mode} for the cluster, {rules} rules, {exempt} exemptions")


@policy_app.command("explain")
def explain_command(
    path: PolicyPath,
    user: Annotated[str, typer.Option(help="Who submits it.")] = "",
    group: Annotated[list[str] | None, typer.Option(help="A group of the user.")] = None,
    account: Annotated[str, typer.Option(help="The account, in Slurm.")] = "",
    qos: Annotated[str, typer.Option(help="The quality of service, in Slurm.")] = "",
    partition: Annotated[list[str] | None, typer.Option(help="Where it may run.")] = None,
    namespace: Annotated[str, typer.Option(help="Where it is, in Kubernetes.")] = "",
    kind: Annotated[str, typer.Option(help="What it is: job, Job.batch, Deployment.apps.")] = "",
    label: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which rule is about a job, and what happens to it.

    Example: memgate policy explain memgate.policy.json --user ada --account lab --partition debug
    """
    subject = Subject(
        user=user,
        group=group or [],
        account=account,
        qos=qos,
        partition=partition or [],
        namespace=namespace,
        kind=kind,
        label=dict(map(_read_label, label or [])),
    )
    chosen = resolve(_read(path), subject)
    if json_:
        typer.echo(json.dumps(_as_json(chosen)))
        return
    for line in explain(chosen):
        typer.echo(line)


def explain(chosen: PolicyChoice) -> list[str]:
    """Say in words what applies to a job."""
    if chosen.is_exempt:
        return [f"{chosen.rule}: exempt: nothing is asked, said or done; the audit records it"]
    words = {
        Mode.ENFORCE: "decisions are carried out",
        Mode.WARN: "people are told; nothing is refused, held or canceled",
        Mode.AUDIT: "only the audit says what would have happened",
    }
    lines = [f"{chosen.rule}: {chosen.mode}: {words[chosen.mode]}"]
    for decision in ACTIONS:
        action = _describe(chosen.actions(decision))
        done = "" if chosen.mode is Mode.ENFORCE else " (under enforce)"
        lines.append(f"  {decision}: {action}{done}")
    return lines


def _describe(actions: list[str]) -> str:
    """Say what a decision leads to; several are those of as many partitions."""
    settings = "as the settings of the gate say"
    if actions == [""]:
        return settings
    return f"{actions[-1]}, or {settings} if that is stricter" if "" in actions else actions[-1]


def _as_json(chosen: PolicyChoice) -> dict[str, Any]:
    on = {one: chosen.actions(one)[-1] for one in ACTIONS if any(chosen.actions(one))}
    return {"mode": chosen.mode, "rule": chosen.rule, "is_exempt": chosen.is_exempt, "on": on}


def _read(path: Path) -> PolicyDocument:
    try:
        return parse_policy(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def _read_label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--label is {text!r}: write NAME=VALUE")
    return name, value
