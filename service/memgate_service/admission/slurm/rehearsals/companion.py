"""The companion: on a compute node, as the job's owner; rehearses, and leaves the result in Slurm.

Its batch script has everything it needs: the broker shares no directory with compute nodes. Only
the timeline is uploaded. The result is written into the companion's own Comment, which its owner
may write.
"""

from __future__ import annotations

import base64
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from memgate.client.clients import Client
from memgate.client.errors import ClientError
from memgate_service.admission.slurm.commands import run
from memgate_service.admission.slurm.rehearsals.queue import Result
from memgate_worker.rehearsal.code import digest_code
from memgate_worker.rehearsal.door import rehearse
from memgate_worker.rehearsal.request import Rehearsal, RehearsalRequest

#: how long memgate may take to answer about a timeline
_WAIT_SECONDS = 30.0
_MAX_WHY = 300
_LINE = 76


class Errand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the broker gives a companion."""

    request: RehearsalRequest
    server: str
    key_file: str = ""


def write_script(errand: Errand, program: Sequence[str], slurm_conf: str = "") -> str:
    """Write the companion's batch script; no text of the job's owner is a command in it."""
    packed = base64.b64encode(msgspec.json.encode(errand)).decode()
    lines = [packed[start : start + _LINE] for start in range(0, len(packed), _LINE)]
    settings = [f"export SLURM_CONF={shlex.quote(slurm_conf)}"] if slurm_conf else []
    path = "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin"
    command = f"exec {shlex.join(program)} <<'END'"
    return "\n".join(["#!/bin/sh", path, *settings, command, *lines, "END", ""])


def read_errand(text: bytes) -> Errand:
    """Read what the broker has written."""
    return msgspec.json.decode(base64.b64decode(text), type=Errand)


def do_errand(
    errand: Errand,
    connect: Callable[[str, str], Client],
    try_out: Callable[[RehearsalRequest], Rehearsal] = rehearse,
) -> Result:
    """Rehearse, ask memgate about the timeline, and return what to report."""
    request = errand.request
    before = _digest(request)
    try:
        found = try_out(request)
    except OSError as error:  # such as a Python that users may not run
        return Result(why=f"it cannot be rehearsed on its node: {error}"[:_MAX_WHY])
    if not found.timeline:
        return Result(why=found.why[:_MAX_WHY], code=before)
    if _digest(request) != before:
        return Result(why="its code was changed while it was rehearsed")
    try:
        key = Path(errand.key_file).read_text().strip() if errand.key_file else ""
        with connect(errand.server, key) as client:
            answer = client.estimate(found.timeline, request.gpu, wait=_WAIT_SECONDS)
    except (ClientError, OSError) as error:
        return Result(why=f"its timeline could not be asked about: {error}"[:_MAX_WHY], code=before)
    return Result(estimate=answer.id, code=before)


def report(result: Result) -> None:
    """Write the result into our own Comment."""
    comment = msgspec.json.encode(result).decode()
    run(["scontrol", "update", f"JobId={os.environ['SLURM_JOB_ID']}", f"Comment={comment}"])


def _digest(request: RehearsalRequest) -> str:
    return digest_code(Path(request.directory), request.script, request.arguments)
