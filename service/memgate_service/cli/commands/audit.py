"""``memgate audit``: what gates decided. Talks to the queue directly, as ``memgate keys`` does."""

from __future__ import annotations

import csv
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from memgate.audit import AuditEntry
from memgate_service.cli.commands.keys import (
    DEFAULT_DATA,
    DataOption,
    QueueAwayError,
    queue_settings,
)
from memgate_worker.queue.client import AuditLog, QueueClient, QueueError

audit_app = typer.Typer(
    name="audit",
    no_args_is_help=True,
    help="Export and count what gates decided, and remove people's names from it.",
)

_DAY_SECONDS = 24 * 3600

Days = Annotated[float, typer.Option(min=0, metavar="DAYS", help="Of the last so many days.")]
Text = Annotated[str, typer.Option(help="Only these.")]
Name = Annotated[str, typer.Argument(metavar="USER", help="As the records have it.")]


class Field(StrEnum):
    """What to count by."""

    USER = "user"
    ACCOUNT = "account"
    NAMESPACE = "namespace"
    PARTITION = "partition"
    DECISION = "decision"
    DONE = "done"
    RULE = "rule"


class Form(StrEnum):
    """How to write records."""

    CSV = "csv"
    JSON = "json"


@audit_app.command("export")
def export_command(
    days: Days = 90,
    user: Text = "",
    account: Text = "",
    namespace: Text = "",
    partition: Text = "",
    decision: Text = "",
    form: Annotated[Form, typer.Option("--format", help="json: one object a line.")] = Form.CSV,
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Write records to standard output, the newest first.

    Example: memgate audit export --days 30 --decision reject > refused.csv
    """
    with _opened(data) as log:
        entries = log.walk(
            since=time.time() - days * _DAY_SECONDS,
            user=user,
            account=account,
            namespace=namespace,
            partition=partition,
            decision=decision,
        )
        _write(entries, form)


def _write(entries: Iterator[AuditEntry], form: Form) -> None:
    if form is Form.JSON:
        for entry in entries:
            typer.echo(entry.text())
        return
    rows = csv.DictWriter(sys.stdout, list(AuditEntry.model_fields), lineterminator="\n")
    rows.writeheader()
    for entry in entries:
        rows.writerow(entry.cells())


@audit_app.command("counts")
def counts_command(
    by: Annotated[Field, typer.Option(help="The field by which to count.")] = Field.USER,
    days: Days = 30,
    decision: Text = "",
    partition: Text = "",
    namespace: Text = "",
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Count records, the most frequent first.

    Who submits jobs without a description: memgate audit counts --decision undescribed
    """
    with _opened(data) as log:
        since = time.time() - days * _DAY_SECONDS
        entries = log.walk(since=since, decision=decision, partition=partition, namespace=namespace)
        counts = Counter(str(getattr(entry, by)) for entry in entries)
    for name, number in counts.most_common():
        typer.echo(f"{number}\t{name or '-'}")


@audit_app.command("pseudonymise")
def pseudonymise_command(user: Name, data: DataOption = DEFAULT_DATA) -> None:
    """Replace a user's name by a pseudonym, the same in all records; names of jobs are erased."""
    with _opened(data) as log:
        typer.echo(f"{log.rename_user(user)} records were changed")


@audit_app.command("erase")
def erase_command(user: Name, data: DataOption = DEFAULT_DATA) -> None:
    """Erase a user's name, groups and names of jobs from all records; the decisions stay."""
    with _opened(data) as log:
        typer.echo(f"{log.rename_user(user, is_erased=True)} records were changed")


@contextmanager
def _opened(data: Path) -> Iterator[AuditLog]:
    queue = QueueClient(queue_settings(data))
    try:
        yield queue.audit
    except QueueError as error:
        raise QueueAwayError.of(error) from None
    finally:
        queue.close()
