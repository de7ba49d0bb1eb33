"""``python -I -m memgate_worker.rehearsal.inside``: in the sandbox; a request in, a result out.

Everything it writes is in ``TMPDIR``, which is held in memory and ends with the sandbox.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from memgate.errors import MemgateError
from memgate.gpus import parse_gpu
from memgate.timeline_file.writing import write_timeline
from memgate_worker.limits import RunLimits
from memgate_worker.local import CommandQuestion, estimate_command
from memgate_worker.rehearsal.request import Rehearsal, RehearsalRequest
from memgate_worker.sandbox.programs import find_programs, write_programs
from memgate_worker.sandbox.secrets import secret_places, without_secrets


def _covers(request: RehearsalRequest, folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield what the job does not see, and what it sees instead."""
    programs, nothing, nobody = folder / "programs", folder / "empty", folder / "empty-file"
    write_programs(programs)
    nothing.mkdir()
    nobody.touch()
    home = Path(request.environment.get("HOME") or "/nonexistent")
    for place in secret_places(home, tuple(map(Path, request.hidden))):
        yield place, nothing if place.is_dir() else nobody
    for name, path in find_programs(request.environment):
        yield path, programs / name


def run(request: RehearsalRequest, folder: Path) -> Rehearsal:
    """Run the job under the recorder; what it says about it is told, never raised."""
    script = folder / "script"
    script.write_text(request.script)
    script.chmod(0o755)
    try:
        target = parse_gpu(request.gpu)
        question = CommandQuestion(
            command=(str(script), *request.arguments),
            directory=Path(request.directory),
            environment=without_secrets(request.environment),
            gpu=target.gpu,
            limits=RunLimits(seconds=request.seconds, memory_bytes=request.memory_bytes),
            covers=dict(_covers(request, folder)),
        )
        found = estimate_command(question, target)
        # the job's arguments stay here: the file is kept by a server that others may read
        return Rehearsal(timeline=write_timeline(found.record(target.gpu, ["rehearsal"])))
    except MemgateError as error:
        return Rehearsal(why=error.message[:500])
    except OSError as error:  # such as a directory that is not on this machine
        return Rehearsal(why=f"the job cannot be started here: {error}"[:500])


def main() -> None:
    """Read a request from standard input, write a result to standard output."""
    result_fd = os.dup(1)
    os.dup2(2, 1)  # nothing else belongs into the result
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=RehearsalRequest)
    with tempfile.TemporaryDirectory(prefix="memgate-rehearsal-") as name:
        result = run(request, Path(name))
    with os.fdopen(result_fd, "wb") as output:
        output.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
