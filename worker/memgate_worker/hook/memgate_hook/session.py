"""This process's part of a run: what it asks memgate, what it tells, how it ends.

Before torch is imported, memgate is asked for the stand-ins for it. It is told of steps, and of
the recording, which is a file next to the socket. It may say that it is enough.

A process that was forked has nothing of its parent's: it connects again as soon as it uses CUDA.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

from .connection import BEGAN, Connection
from .descent import BACKGROUND, find_children
from .helpers import find_helpers
from .phantom import Phantom
from .watch import Seen, Watch

#: exit status of a process that must not go on; memgate is told the reason
STOPPED = 86

#: progress is told at most so often
_PROGRESS_SECONDS = 0.2


class Session:
    """One process of a job."""

    def __init__(self, run_dir: Path, connection: Connection, phantom: Phantom) -> None:
        self._run_dir = run_dir
        self._connection = connection
        self._phantom = phantom
        self._watch = Watch.from_environment()
        self._recording: Any = None
        self._longest: Any = None
        self._now = time.monotonic
        self._first_step_at = 0.0
        self._worked_before = 0.0
        self._told_at = 0.0
        self._notes: dict[str, bool] = {}
        #: that the job asked for, if it did
        self._exit_status = 0
        self._written_by = 0
        self._is_compile_worker = False
        self._lock = threading.RLock()

    @classmethod
    def begin(cls, torch_dir: Path) -> Session:
        """Have the stand-ins for a torch loaded; ends the process if there are none."""
        run_dir = Path(os.environ["MEMGATE_RUN_DIR"])
        try:
            connection = Connection(run_dir)
        except OSError as error:
            _stop(f"memgate: {run_dir}: {error}; the run has ended")
        answer = connection.ask(
            kind="torch", directory=str(torch_dir), path=sys.path, executable=sys.executable
        )
        if "libraries" not in answer:
            _stop(f"memgate: {answer.get('problem', 'the run has ended')}")
        cudnn, cufft = (
            Path(answer[name]) if answer.get(name) else None for name in ("cudnn", "cufft")
        )
        # Triton looks for the driver's library by itself
        os.environ["TRITON_LIBCUDA_PATH"] = answer["libraries"]
        try:
            phantom = Phantom(Path(answer["libraries"]), cudnn, cufft)
        except OSError as error:
            connection.tell(kind="problem", message=f"our stand-ins cannot be loaded: {error}")
            _stop(f"memgate: {error}")
        _announce_the_hook()
        return cls(run_dir, connection, phantom)

    def torch_is_there(self, torch: Any) -> None:
        """Check that torch sees the phantom, and record from now on."""
        from . import adjustments, launchers
        from .compiled_kernels import stand_in_for_kernels
        from .compiling import CompileClock
        from .recording import Recording
        from .recurrent import run_recurrent_layers_without_cudnn

        adjustments.show_all_devices(self._phantom.num_devices)
        problem = _why_not_the_phantom(torch)
        if problem is not None:
            self._give_up(problem)
        try:
            self._recording = Recording(self._phantom, self._progress)
        except OSError as error:
            self._give_up(f"what listens to torch {torch.__version__} cannot be loaded: {error}")
        self._have_the_longest_batch()
        self._now = CompileClock().now
        adjustments.leave_weights_unfilled()
        adjustments.read_large_numbers()
        if os.environ.get("MEMGATE_IGNORE_COMPILE") == "1":
            adjustments.run_eagerly(self._note("compile_ignored"))
        run_recurrent_layers_without_cudnn(self._note("recurrent"))
        stand_in_for_kernels()
        adjustments.show_the_memory_of_the_gpu(self._phantom.shown_bytes)
        adjustments.note_fractions(self._recording.tracker.note_fraction)
        adjustments.note_pools(self._note("pools"), self._note("special_pools"))
        adjustments.note_resets(self._recording.note_peaks)
        torch.save = self._recording.stages.saving(torch.save)
        torch.cuda._lazy_call(self._cuda_is_used)
        launchers.torch_is_there(torch)
        self._see_the_end()

    def _give_up(self, problem: str) -> None:
        self._connection.tell(kind="problem", message=problem)
        _stop(f"memgate: {problem}")

    def _have_the_longest_batch(self) -> None:
        length, stages = os.environ.get("MEMGATE_LONGEST"), self._recording.stages
        if length == "data":
            from .longest_samples import LongestSamples

            self._longest = LongestSamples(stages)
        elif length:
            from .longest import Longest

            self._longest = Longest(int(length), stages)

    def _note(self, name: str) -> Callable[[], None]:
        def note() -> None:
            self._notes[name] = True

        return note

    def _cuda_is_used(self) -> None:
        """From here on this process counts; it listens to memgate on a thread of its own."""
        from .compiling import is_compile_worker

        self._is_compile_worker = is_compile_worker()
        if self._is_compile_worker:
            return
        self._connection.reopen_in_a_fork()
        self._connection.tell(
            kind="device",
            pid=os.getpid(),
            began=BEGAN,
            parent=os.getppid(),
            background=BACKGROUND,
        )
        threading.Thread(target=self._listen, name="memgate", daemon=True).start()

    def _listen(self) -> None:
        if self._connection.hears_that_it_is_enough():
            self.finish("time")

    def _progress(self) -> None:
        """Tell how far the job is, and end it if that is enough."""
        now = self._now()
        stages = self._recording.stages
        if not self._first_step_at:
            self._first_step_at, self._worked_before = now, time.process_time()
        is_due = self._longest is not None and self._longest.is_due
        is_idle = self._recording.has_idle_optimizer
        seen = Seen(
            stages.num_steps,
            stages.evaluations.are_enough,
            is_due,
            is_idle,
            num_evaluations=stages.evaluations.num_ended,
            worked_seconds=time.process_time() - self._worked_before,
        )
        why = self._watch.why_stop(seen, now - self._first_step_at)
        if why is not None:
            self.finish(why)
        if now - self._told_at > _PROGRESS_SECONDS:
            self._told_at = now
            self._connection.tell(kind="progress", stage=stages.stage, num_steps=stages.num_steps)

    def finish(self, why: str) -> None:
        """Write the recording and end this process where it is; nothing can catch this."""
        self._write(why)
        sys.stdout.flush()
        sys.stderr.flush()
        _exit(0)

    def _see_the_end(self) -> None:
        """Write the recording when the job ends by itself, in whatever way it does."""
        atexit.register(self._write, "end")
        sys_exit = sys.exit

        def exit_noted(status: Any = None) -> None:
            # a text is printed, and means 1
            self._exit_status = status if isinstance(status, int) else int(status is not None)
            sys_exit(status)

        def exit_seen(status: int) -> None:
            self._exit_status = status
            self._write("end")
            _exit(status)

        sys.exit = exit_noted  # type: ignore[assignment]
        # Children of multiprocessing end with it, and so do some launchers.
        os._exit = exit_seen  # type: ignore[assignment]
        for name in ("execv", "execve"):  # which all others of their kind call
            setattr(os, name, self._become_another(getattr(os, name)))

    def _become_another(self, execute: Any) -> Any:
        """Write the recording before another program takes the place of this one."""

        def execute_seen(path: Any, *args: Any) -> Any:
            # A search along PATH tries what is not there.
            if isinstance(path, int) or os.access(path, os.X_OK):
                self._write("end")
            try:
                return execute(path, *args)
            finally:  # there was no such program, and the job goes on
                self._written_by = 0

        return execute_seen

    def _write(self, why: str) -> None:
        """Write the recording, once, if this process has used CUDA."""
        import torch

        with self._lock:
            pid = os.getpid()
            is_used = torch.cuda.is_initialized() and not torch.cuda._is_in_bad_fork()
            if self._written_by == pid or not is_used or self._is_compile_worker:
                return
            self._written_by = pid
            try:
                file = self._write_file(why, pid)
            except Exception as error:
                problem = f"what was recorded cannot be written, a fault of memgate: {error!r}"
                self._connection.tell(kind="problem", message=problem)
                return
            at = time.clock_gettime(time.CLOCK_BOOTTIME)
            children = [] if why == "end" else find_children(pid)
            self._connection.tell(
                kind="recorded",
                pid=pid,
                began=BEGAN,
                file=file,
                why=why,
                at=at,
                children=children,
                helpers=find_helpers(children),
            )

    def _write_file(self, why: str, pid: int) -> str:
        from .compiling import were_kernels_timed
        from .pipelines import ranks_of_stages

        if why == "end":
            self._recording.stages.nothing_comes_later()
        if were_kernels_timed():
            self._note("kernels_timed")()
        if os.environ.get("CUDA_VISIBLE_DEVICES", "").isdecimal():
            self._note("sees_one_device")()
        described = self._recording.describe()
        if self._longest is not None:
            described["longest"] = self._longest.describe()
        described.update(why=why, notes=sorted(self._notes), exit_status=self._exit_status)
        described["pipeline"] = ranks_of_stages
        path = self._run_dir / f"{pid}-{BEGAN:.6f}.recording"
        with path.open("wb") as out:
            out.write(json.dumps(described).encode() + b"\n")
            out.write(self._recording.tracker.rows())
        return path.name


_exit = os._exit


def _stop(said: str) -> Any:
    sys.stderr.write(said + "\n")
    sys.stderr.flush()
    _exit(STOPPED)


def _announce_the_hook() -> None:
    """Tell the guard, if this process has it: it stops processes that load torch without us."""
    announce = getattr(ctypes.CDLL(None), "memgate_guard_hook_present", None)
    if announce is not None:
        announce()


def _why_not_the_phantom(torch: Any) -> str | None:
    """Say why CUDA would not go to the phantom; None if it does."""
    if getattr(torch.version, "hip", None):
        return "this torch was built for ROCm; memgate knows the memory of CUDA only"
    if torch.version.cuda is None:
        return (
            "this torch was built for CPUs only, so the job would not use a GPU; run it in an"
            " environment with a torch for CUDA"
        )
    if not torch.cuda.is_available():
        return "torch does not see the phantom GPU, so nothing it does can be recorded"
    return None
