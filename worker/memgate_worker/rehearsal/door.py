"""A job without a description -> its timeline, from one run without a GPU in a sandbox.

Run as the job's owner. Nothing is written but for the cache of stand-ins, nothing that the job
starts outlives it, it reaches no network and no program that would act on the cluster. Where the
machine offers no such sandbox the job is not run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from memgate_worker.rehearsal.request import Rehearsal, RehearsalRequest
from memgate_worker.sandbox.level import Level
from memgate_worker.sandbox.sandbox import Sandbox, choose_level

#: becomes private and empty, and takes everything that is written
_SCRATCH = Path("/var/tmp")

#: for what comes before and after the job: building stand-ins, reading the recording
_MORE_SECONDS = 60.0

_MODULE = "memgate_worker.rehearsal.inside"


def rehearse(request: RehearsalRequest) -> Rehearsal:
    """Rehearse a job; a failure is a result, too: it says why nothing is known."""
    choice = choose_level((Level.ROOT, Level.NAMESPACES))
    if not choice.level.is_apart:
        why = f"this machine cannot run it apart from itself ({'; '.join(choice.refusals)})"
        return Rehearsal(why=why[:500])
    sandbox = Sandbox(level=choice.level, memory_at=_SCRATCH, memory_bytes=request.written_bytes)
    with subprocess.Popen(
        sandbox.command([sys.executable, "-I", "-m", _MODULE]),
        env=_own_environment(request),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(
                msgspec.json.encode(request), request.seconds + _MORE_SECONDS
            )
        except subprocess.TimeoutExpired:
            return Rehearsal(why="it did not end in time")
        finally:
            process.terminate()  # which ends everything in the sandbox
    return _read(out, err, process.returncode)


def _read(out: bytes, err: bytes, status: int) -> Rehearsal:
    try:
        return msgspec.json.decode(out, type=Rehearsal)
    except msgspec.MsgspecError:
        said = err.decode(errors="replace").strip().splitlines()[-1:] or [f"status {status}"]
        return Rehearsal(why=f"the rehearsal failed: {said[0]}"[:500])


def _own_environment(request: RehearsalRequest) -> dict[str, str]:
    """Return the variables of our own program: the job's are part of the request."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    kept.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    cache = _find_cache(request.cache) or _SCRATCH / "memgate-cache"
    return kept | {"TMPDIR": str(_SCRATCH), "MEMGATE_CACHE_DIR": str(cache), "HOME": str(_SCRATCH)}


def _find_cache(base: str) -> Path | None:
    """Return the user's own directory in a cache, made if need be; None if there can be none."""
    if not base:
        return None
    path = Path(base, str(os.getuid()))
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        info = path.lstat()
    except OSError:
        return None
    is_ours = info.st_uid == os.getuid() and not info.st_mode & 0o022 and path.is_dir()
    return path if is_ours and not path.is_symlink() else None
