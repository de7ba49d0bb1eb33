"""The sandbox of a process that is kept for jobs: its plan, its cgroup, where it may write."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from memgate_worker.sandbox.cgroups import make_cgroup
from memgate_worker.sandbox.level import Level
from memgate_worker.sandbox.policy import SandboxPolicy, command_in, make_cell


class House:
    """The sandbox of one process; close it when the process has ended."""

    def __init__(
        self, policy: SandboxPolicy, readable: Sequence[Path], *, max_processes: int | None = None
    ) -> None:
        """Prepare it; ``max_processes`` are those of a job.

        Raises:
            SandboxError: if the operator asks for more than works here.
        """
        cell = make_cell(policy, readable)
        if max_processes is not None:
            cell = replace(cell, max_processes=max_processes)
        self._written = tempfile.TemporaryDirectory(prefix="memgate-", ignore_cleanup_errors=True)
        self.written = Path(self._written.name)
        if cell.level is Level.ROOT and cell.first_uid is not None:
            os.chown(self.written, cell.first_uid, cell.first_uid)
        self._cgroup = make_cgroup(cell.max_processes)
        self.joined_by = () if self._cgroup is None else self._cgroup.joined_by
        self._cell = replace(cell, writable=(str(self.written),), cgroups=self.joined_by)

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command line that starts the process in its sandbox."""
        return command_in(self._cell, command)

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the process; its home is its own, and empty."""
        ours = self._cell.with_variable(environment)
        if self._cell.level.is_apart:
            ours |= {"HOME": "/tmp/home", "TMPDIR": "/tmp"}
        return ours

    def limit_memory(self, num_bytes: int) -> None:
        """Bound the memory of the next job, and of the files that it holds in memory."""
        if self._cgroup is not None:
            self._cgroup.limit_memory(num_bytes + self._cell.scratch_bytes)

    @property
    def has_run_out_of_memory(self) -> bool:
        """The kernel has ended a process of the job since, for want of memory."""
        return self._cgroup is not None and self._cgroup.has_killed

    def close(self) -> None:
        """Remove it."""
        if self._cgroup is not None:
            self._cgroup.close()
        self._written.cleanup()
