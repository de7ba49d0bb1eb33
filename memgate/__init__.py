"""memgate: will this training job fit on that GPU?

    from memgate import estimate

    print(estimate("job.yaml", "rtx-3060").decision)

The names below are the public surface; each is imported when it is first used, so that ``import
memgate`` loads no engine, no HTTP library and no torch. The rest of the package is a pure library:
no network, no files, no clock, no environment. Two rooms are exempt: ``client`` (HTTP) and
``local``, which answers with the engines of ``memgate_worker``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memgate.version import __version__

if TYPE_CHECKING:
    from memgate.client.clients import AsyncClient, Client
    from memgate.client.outcome import report_when_done
    from memgate.jobspec import JobSpec
    from memgate.local import estimate, read_timeline
    from memgate.report import Estimate
    from memgate.timeline_file.recorded import RecordedTimeline

__all__ = [
    "AsyncClient",
    "Client",
    "Estimate",
    "JobSpec",
    "RecordedTimeline",
    "__version__",
    "estimate",
    "read_timeline",
    "report_when_done",
]

#: where each name is defined
_MODULES = {
    "AsyncClient": "memgate.client.clients",
    "Client": "memgate.client.clients",
    "Estimate": "memgate.report",
    "JobSpec": "memgate.jobspec",
    "RecordedTimeline": "memgate.timeline_file.recorded",
    "estimate": "memgate.local",
    "read_timeline": "memgate.local",
    "report_when_done": "memgate.client.outcome",
}


# Hidden from type checkers: they would accept any name.
if not TYPE_CHECKING:  # pragma: no branch

    def __getattr__(name: str) -> object:
        """Import a name of the surface when it is first used."""
        if name not in _MODULES:
            raise AttributeError(f"module 'memgate' has no attribute {name!r}")
        from importlib import import_module

        try:
            module = import_module(_MODULES[name])
        except ModuleNotFoundError as error:
            from memgate.errors import MissingExtraError

            raise MissingExtraError.of(f"memgate.{name}", error, extra="client") from None
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    """List the surface, including what is not imported yet."""
    return sorted({*globals(), *__all__})
