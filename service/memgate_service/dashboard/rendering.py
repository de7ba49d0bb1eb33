"""Values -> pages: the templates, what every page is given, and how figures are written.

Everything that a template prints is escaped. There are no inline scripts or styles, so that a
policy can forbid them: ``POLICY``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from memgate.decision import Decision
from memgate.errors import Fault
from memgate.units import GIB, format_size
from memgate.version import __version__
from memgate_service.dashboard.assets import load_assets
from memgate_service.dashboard.viewers import Viewer
from memgate_worker.queue.client import JobOutcome

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

#: a form that is sent without any referrer does not give its origin either, and is refused
_HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin"}

_TIB = 1024 * GIB

#: what outcomes are called, and the symbol that tells them apart without colour
OUTCOMES: dict[str, tuple[str, str]] = {
    Decision.ADMIT: ("admit", "✓"),
    Decision.UNCERTAIN: ("uncertain", "?"),
    Decision.REJECT: ("reject", "✕"),
    JobOutcome.ANSWERED: ("answered", "•"),
    Fault.CALLER: ("invalid", "!"),
    Fault.JOB: ("job fails", "!"),
    Fault.UNSUPPORTED: ("not supported", "!"),
    Fault.OPERATOR: ("operator", "!"),
    Fault.PASSING: ("ask again", "!"),
    Decision.UNKNOWN: ("unknown", "-"),
    "pending": ("not yet", "…"),
}

#: what holds memory, in the order in which it is stacked, from the bottom up
CATEGORIES = {
    "parameters": "parameters",
    "optimizer_state": "optimizer state",
    "workspace": "workspaces",
    "gradients": "gradients",
    "batch": "batch",
    "activations": "activations",
    "temporary": "temporary",
    "other": "other",
    "fragmentation": "fragmentation",
    "context": "CUDA context",
    "communication": "NCCL",
}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("memgate_service.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": write_size,
        "percent": write_percent,
        "seconds": write_seconds,
        "moment": write_moment,
    }
    environment.globals |= {
        "asset": load_assets().url,
        "version": __version__,
        "OUTCOMES": OUTCOMES,
        "FAULTS": tuple(Fault),
        "CATEGORIES": CATEGORIES,
    }
    return environment


def render(
    request: Request, template: str, viewer: Viewer | None, *, status: int = 200, **context: Any
) -> HTMLResponse:
    """Make a page; ``viewer`` is None if nobody has signed in yet."""
    html = render_part(template, viewer=viewer, path=request.url.path, **context)
    return HTMLResponse(html, status, headers=_HEADERS)


def render_part(template: str, **context: Any) -> str:
    """Make a page, or a part of one that a script puts in place."""
    return _environment().get_template(template).render(context)


def write_size(size_bytes: int | None) -> str:
    """Write a size for a person; it may be negative."""
    if size_bytes is None:
        return "-"
    sign = "-" if size_bytes < 0 else ""
    size = abs(size_bytes)
    for unit, name in (
        (_TIB * 1024, "PiB"),
        (_TIB, "TiB"),
    ):  # sums of many jobs: no job is so large
        if size >= unit:
            return f"{sign}{size / unit:.2f} {name}"
    return f"{sign}{format_size(size)}"


def write_percent(share: float | None, digits: int = 1) -> str:
    """Write a share."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def write_seconds(seconds: float | None) -> str:
    """Write a duration in the unit that suits it."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"


def write_moment(moment: datetime | float) -> str:
    """Write a time as an HTML element; scripts show it in the reader's time zone."""
    if not isinstance(moment, datetime):
        moment = datetime.fromtimestamp(moment, UTC)
    return moment.isoformat(timespec="seconds")
