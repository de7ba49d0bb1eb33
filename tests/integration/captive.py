"""A process that is kept for jobs, as an engine's is, whose jobs are what a test says.

``python -P -m tests.integration.captive``: code to run, as a line of JSON with limits; a line of
JSON each with how its process ended and what it printed. No torch, so it starts at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import memgate
import memgate_worker
from memgate.errors import MemgateError
from memgate_worker.engines.child import JobPlace, run_in_child
from memgate_worker.limits import RunLimits
from memgate_worker.sandbox.cell import Cell
from memgate_worker.sandbox.confine import Jobs
from memgate_worker.sandbox.housing import House
from memgate_worker.sandbox.level import Level
from memgate_worker.sandbox.policy import SandboxPolicy

#: few, so that what multiplies does not slow down the machine
MAX_PROCESSES = 60

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job has ended."""

    #: None: we ended it
    code: int | None
    printed: str
    #: the code of the error, if a limit was exceeded
    error: str = ""


class Captive:
    """Our end of it. A context manager."""

    def __init__(self, level: Level) -> None:
        seen = (
            *(Path(package.__file__ or "").parent for package in (memgate, memgate_worker)),
            *(_ROOT / "tests", Path(sys.prefix), Path(sys.base_prefix)),
        )
        self.house = House(SandboxPolicy(use=level), seen, max_processes=MAX_PROCESSES)

    def __enter__(self) -> Captive:
        program = [sys.executable, "-P", "-c", _START, str(_ROOT)]
        self.process = subprocess.Popen(
            self.house.command(program),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.house.environment({"PATH": "/usr/bin:/bin"}),
            pass_fds=self.house.joined_by,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.house.close()

    def run(self, code: str, *, seconds: float = 30.0, memory_bytes: int = 1 << 30) -> Ended:
        """Run Python code as a job."""
        self.house.limit_memory(memory_bytes)
        request = {"code": code, "seconds": seconds, "memory_bytes": memory_bytes}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return Ended(**json.loads(self.process.stdout.readline()))

    def ask(self, code: str) -> Any:
        """Run a job that prints JSON; return it."""
        ended = self.run(code)
        assert ended.code == 0, ended
        return json.loads(ended.printed)


_START = (
    "import sys; sys.path.insert(0, sys.argv[1]);"
    " from tests.integration.captive import serve; serve()"
)


def serve() -> None:
    """Run jobs until standard input ends."""
    jobs = Jobs(Cell.take_from_environment())
    never, _kept = os.pipe()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_run(json.loads(line), jobs, never)) + "\n")
        sys.stdout.flush()


def _run(request: dict[str, Any], jobs: Jobs, never: int) -> dict[str, Any]:
    limits = RunLimits(seconds=request["seconds"], memory_bytes=request["memory_bytes"])
    with tempfile.TemporaryFile() as said, tempfile.TemporaryDirectory() as folder:

        def work() -> None:
            for number in (1, 2):
                os.dup2(said.fileno(), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            exec(compile(request["code"], "job", "exec"), {"__name__": "__main__"})

        place = JobPlace(jobs=jobs, folder=Path(folder), keeps=(said.fileno(),))
        code, error = _wait(work, limits, place, never)
        said.seek(0)
        return {"code": code, "printed": said.read().decode(errors="replace"), "error": error}


def _wait(
    work: Callable[[], None], limits: RunLimits, place: JobPlace, never: int
) -> tuple[int | None, str]:
    try:
        code = run_in_child(work, limits, place, told=never, on_told=lambda _: None, unwanted=never)
    except MemgateError as error:
        return None, error.code
    return code, ""
