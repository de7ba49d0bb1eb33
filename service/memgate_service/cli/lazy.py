"""The commands of ``memgate``: each is imported when it is run.

Help and completion of names need only what is written here, so ``memgate --version`` and the shell
do not wait for plots, settings or a web framework. A command whose packages are missing is still
listed, and says which extra provides them when it is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from memgate.errors import MissingExtraError


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command, or a group of them, before it is imported."""

    name: str
    #: the first sentence of its help
    summary: str
    #: the extra with the packages that it needs
    extra: str = ""
    #: options that it does not know belong to the user's script
    takes_unknown_options: bool = False
    #: what follows its own options is a command, with options of its own
    takes_a_command: bool = False

    def load(self) -> Any:
        """Import it: the module of its name in ``commands`` has ``NAME_command`` or ``NAME_app``.

        Raises:
            MissingExtraError: if its packages are not installed, with the command that installs
        them.
        """
        name = self.name.replace("-", "_")
        try:
            module = import_module(f"memgate_service.cli.commands.{name}")
        except ModuleNotFoundError as error:
            raise MissingExtraError.of(f"memgate {self.name}", error, self.extra) from None
        if hasattr(module, f"{name}_app"):
            return get_group(getattr(module, f"{name}_app"))
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        settings: dict[str, Any] = {"ignore_unknown_options": self.takes_unknown_options}
        if self.takes_a_command:
            settings["allow_interspersed_args"] = False
        alone.command(self.name, context_settings=settings)(getattr(module, f"{name}_command"))
        return get_command(alone)


_ALL = (
    Command(
        name="up",
        summary="Start everything on this machine: queue, workers and HTTP service.",
        extra="service,up",
    ),
    Command(name="estimate", summary="Will this job fit on that GPU?"),
    Command(
        name="run",
        summary="Will this command fit on that GPU?",
        takes_a_command=True,
    ),
    Command(name="analyze", summary="Would the job of this file fit on that GPU?"),
    Command(name="max-batch", summary="What is the largest batch that is admitted?"),
    Command(name="plan", summary="How many GPUs does a job need, and how should it be divided?"),
    Command(name="fit", summary="On which GPUs does this job fit?"),
    Command(
        name="profile",
        summary="Run a training script, unchanged, on the CPU for a few steps and save what a"
        " profiler sees.",
        takes_unknown_options=True,
    ),
    Command(name="gpus", summary="List the GPUs that a job can be asked to fit on."),
    Command(name="models", summary="List the public models that a job spec can name."),
    Command(
        name="init",
        summary="Write a first job spec: of a script or a config, or by five questions.",
    ),
    Command(name="convert", summary="Turn the config of a trainer into a job spec."),
    Command(name="schema", summary="Print the JSON Schema of a job spec, for editors."),
    Command(
        name="runtimes",
        summary="List, install or remove the library versions that jobs are run with.",
    ),
    Command(
        name="pack",
        summary="Make a directory with which memgate runs in a container, without a compiler or"
        " network.",
    ),
    Command(
        name="rehearse",
        summary="Run a command once without a GPU, and write what is known of it into a small"
        " file.",
        extra="service",
        takes_a_command=True,
    ),
    Command(
        name="replay",
        summary="Replay recordings of PyTorch's CUDA caching allocator and compare every answer.",
    ),
    Command(
        name="accuracy",
        summary="Predict every row of a truth file and print the table against the published"
        " estimators.",
    ),
    Command(
        name="benchmark",
        summary="Score engines on measured jobs: per source, per method, and by what was measured.",
    ),
    Command(name="keys", summary="Make, list and revoke API keys.", extra="service"),
    Command(
        name="audit",
        summary="Export and count what gates decided, and remove people's names from it.",
        extra="service",
    ),
    Command(
        name="policy",
        summary="Check the policy of a gate, and see which of its rules is about a job.",
    ),
    Command(
        name="doctor",
        summary="Find what an administrator has set up wrongly; nothing is changed.",
        extra="client",
    ),
    Command(
        name="slurm",
        summary="Release the jobs that Slurm holds for memgate, and report what jobs really took.",
        extra="client",
    ),
    Command(
        name="certificates",
        summary="Keep the certificate of the admission webhooks fresh; the Helm chart runs this"
        " every day.",
        extra="service,kubernetes",
    ),
    Command(
        name="controller",
        summary="Release Kubernetes objects that are held until memgate has an answer; runs until"
        " stopped.",
        extra="service,client,kubernetes",
    ),
)

#: by name, in the order of the help
COMMANDS = {command.name: command for command in _ALL}


def add_stub(app: typer.Typer, command: Command) -> None:
    """List a command without importing it."""

    def stub() -> None:
        """``LazyGroup`` runs the command itself."""
        raise AssertionError(f"{command.name} was not imported")

    app.command(command.name, help=command.summary)(stub)


class LazyGroup(TyperGroup):
    """A group that lists stubs, and imports a command to run it or complete its options."""

    # Any: typer keeps the types of click to itself
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that is meant, and import it."""
        name, stub, rest = super().resolve_command(ctx, args)
        if name not in COMMANDS:
            return name, stub, rest
        try:
            return name, COMMANDS[name].load(), rest
        except MissingExtraError:
            if ctx.resilient_parsing:  # the shell wants completions, and nobody would read this
                return name, stub, rest
            raise
