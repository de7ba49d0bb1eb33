"""``memgate schema``: what a job spec may have, for editors and programs."""

from __future__ import annotations

import json

import typer

from memgate.jobspec import JobSpec


def schema_command() -> None:
    """Print the JSON Schema of a job spec, for editors.

    With it, an editor completes fields and marks mistakes. Write it to a file, and name that in
    the first line of a spec: # yaml-language-server: $schema=job.schema.json

    Example: memgate schema > job.schema.json
    """
    typer.echo(write_schema(), nl=False)


def write_schema() -> str:
    """Return it as text."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return f"{json.dumps(schema | JobSpec.model_json_schema(), indent=2)}\n"
