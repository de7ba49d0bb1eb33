"""What rehearsals found, by a key of all that decides it: the same job is not run again."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

from memgate_service.admission.slurm.rehearsals.job_files import JobFiles
from memgate_service.admission.slurm.rehearsals.queue import WaitingJob

_MAX_ENTRIES = 10_000
_MAX_SECONDS = 30 * 86400.0

#: variables that differ from one shell to the next and decide nothing
_VOLATILE = re.compile(
    r"SLURM|SBATCH|SRUN|SALLOC|SSH_|XDG_|DBUS_|TERM|TMUX|STY$|WINDOW|DISPLAY$|SHLVL$|OLDPWD$|PWD$"
    r"|_$|HOSTNAME$|HISTFILE|LS_COLORS$|INVOCATION_ID$|JOURNAL_STREAM$|MAIL$|LESS|PS1$|PROMPT"
)


def make_key(waiting: WaitingJob, files: JobFiles, code: str) -> str:
    """Return what two jobs have in common that need the same; empty if that cannot be known.

    Script, arguments, directory, variables, sizes and times of its code, GPUs and tasks.
    """
    if not code:
        return ""
    record = waiting.job.record
    variables = {
        name: value for name, value in files.environment.items() if not _VOLATILE.match(name)
    }
    parts = [
        *(files.script, record.arguments, waiting.directory, sorted(variables.items()), code),
        *(record.gpu, record.gpus, record.per_node, waiting.num_tasks, waiting.num_nodes),
        *(waiting.tasks_per_node, waiting.uid),
    ]
    return hashlib.sha256(json.dumps(parts).encode(errors="surrogateescape")).hexdigest()


class KnownResults:
    """Ids of answers by keys, in a file; a broken or missing file is an empty one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, tuple[str, float]] = {}
        try:
            said = json.loads(path.read_text()) if path is not None and path.exists() else {}
            self._known = {str(key): (str(one[0]), float(one[1])) for key, one in said.items()}
        except (OSError, ValueError, TypeError, AttributeError, IndexError, KeyError):
            self._known = {}

    def find(self, key: str, now: float) -> str:
        """Return the id of an answer; empty if there is none."""
        estimate, at = self._known.get(key, ("", 0.0))
        return estimate if key and now - at < _MAX_SECONDS else ""

    def add(self, key: str, estimate: str, now: float) -> None:
        """Keep an answer's id; the oldest are dropped."""
        if not key or not estimate:
            return
        self._known[key] = (estimate, now)
        latest = sorted(self._known.items(), key=lambda item: item[1][1])[-_MAX_ENTRIES:]
        self._known = dict(latest)
        if self._path is not None:
            fresh = self._path.with_name(self._path.name + ".new")
            fresh.write_text(json.dumps(self._known))
            os.replace(fresh, self._path)
