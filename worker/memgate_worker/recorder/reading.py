"""What a command's processes recorded -> the timeline of the one that decides, and its doubts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import BinaryIO, NamedTuple

from msgspec import structs

from memgate.errors import (
    JobFailedError,
    MemgateError,
    NotProtectedError,
    SimulationError,
    UnsupportedJobError,
)
from memgate.report import Reason
from memgate.timeline_file.recorded import BatchShape, name_libraries
from memgate_worker.engines.messages import RecordedRun
from memgate_worker.engines.phantom.data_sizes import join_ends
from memgate_worker.engines.phantom.engine import to_traced
from memgate_worker.engines.phantom.recorded import (
    Description,
    Raised,
    SeenTensor,
    interpret,
    read_recording,
)
from memgate_worker.engines.traced import TracedJob
from memgate_worker.hook.memgate_hook.watch import MIN_STEPS
from memgate_worker.jobs.failures import not_modelled
from memgate_worker.recorder.command import Recorded, run_command
from memgate_worker.recorder.doubts import (
    doubt_what_was_seen,
    has_unknown_pools,
    note_what_was_seen,
)
from memgate_worker.recorder.failures import (
    blame_guard,
    explain_failure,
    explain_no_recording,
    explain_status,
    output_of,
)
from memgate_worker.recorder.growth import find_growth, kept_at_steps
from memgate_worker.recorder.listening import Heard, HeardWorld
from memgate_worker.recorder.processes import doubt_processes, note_processes
from memgate_worker.recorder.question import CommandQuestion

#: what each process recorded, by its id: a description, and the tracker's rows
_Found = dict[int, tuple[Description, bytes]]


class _Seen(NamedTuple):
    """What is known of a process."""

    described: Description
    failure: Raised | None
    #: by how much more it keeps with each step
    growth_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRun:
    """A command that was run: the job's timeline, and what is known of it."""

    traced: TracedJob
    batches: tuple[BatchShape, ...]
    #: the real cuDNN that was asked for plans
    cudnn: str | None
    #: training steps that were seen
    num_steps: int
    #: why the run ended: ``end``, ``steps``, ``evaluation`` or ``time``
    why: str
    #: the most that its allocator reserved
    peak_bytes: int
    #: its changes of files were kept apart, so that the command can be run again
    is_protected: bool
    #: the job's processes, if it has several; which of them were there, and which this is
    world: HeardWorld | None = None
    present: frozenset[int] = frozenset()
    rank: int = 0
    #: of a job with a pipeline, the ranks of its stages
    stages: tuple[int, ...] = ()
    #: what it sent to other ranks
    sent: Mapping[str, bytes] = field(default_factory=dict)
    #: the GPU that it used, of those of its node; None if it was shown no other
    device: int | None = None


def record_rank(
    question: CommandQuestion,
    *,
    output: BinaryIO | None = None,
    on_progress: Callable[[Heard], None] = lambda _: None,
) -> CommandRun:
    """Run a command on the phantom and return the timeline of one rank of its job.

    All of them are up to ``ranks``. If sizes depend on data, the command is run a second time, at
    the other end (``data_sizes``).

    Raises what ``run_command`` raises, and:
        JobFailedError: if the job fails.
        NotModelledError: if it needs something that the phantom lacks.
        UnsupportedJobError: if it trains nothing that can be seen.
        OperatorError: if there are no stand-ins for its torch.
        SimulationError: if the simulator and the real allocator disagree.
    """
    start = time.perf_counter()
    first = _record_once(question, output, on_progress)
    if not first.has_data_sizes:
        return first.run
    runs = [first.run]

    def run_with_none() -> TracedJob:
        if not first.run.is_protected:
            raise NotProtectedError("its changes of files are not kept apart")
        limits = question.limits.after(first.seconds)
        # What reports to others has done so.
        again = replace(question, data_sizes="none", keep=None, is_online=False, limits=limits)
        runs.append(_record_once(again, None, lambda _: None).run)
        return runs[-1].traced

    joined = join_ends(first.run.traced, run_with_none)
    (answered,) = [run for run in runs if run.traced.timeline is joined.timeline]
    doubts = {doubt.code: doubt for run in (*runs, answered) for doubt in run.traced.doubts}
    seconds = time.perf_counter() - start
    return replace(answered, traced=replace(joined, doubts=tuple(doubts.values()), seconds=seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunOnce:
    """One of at most two runs of a command."""

    run: CommandRun
    has_data_sizes: bool
    #: of the command
    seconds: float


def _record_once(
    question: CommandQuestion, output: BinaryIO | None, on_progress: Callable[[Heard], None]
) -> _RunOnce:
    start = time.perf_counter()
    recorded = run_command(question, output=output, on_progress=on_progress)
    try:
        return _read(recorded, question, start)
    except MemgateError as error:
        if isinstance(error, JobFailedError):
            error = blame_guard(error, recorded)
        if (world := recorded.heard.world) is not None:
            error = error.about(f"rank {question.rank} of {world.size}")
        raise error from None


def _read(recorded: Recorded, question: CommandQuestion, start: float) -> _RunOnce:
    if not recorded.recordings:
        raise explain_no_recording(recorded, question)
    found = _read_all(recorded)
    _check_that_it_trained(found, recorded, question)
    heard = recorded.heard
    pid = _find_decisive(found)
    described, rows = found[pid]
    rank = heard.ranks.get(pid, question.rank) if heard.world else 0
    run = interpret(described, rows)
    cudnn = heard.cudnn
    runtime = question.runtime or name_libraries(run.versions, cudnn)
    traced = _check(described, run, runtime, time.perf_counter() - start)
    seen = _find_seen(found, pid, run, heard)
    # asking for the properties of a GPU, as launchers do, takes no memory of it
    peaks = {one: peak for one, (of_it, _) in found.items() if (peak := _peak_bytes(of_it))}
    doubts = dict.fromkeys(
        (
            *traced.doubts,
            *_once(
                doubt
                for one in seen
                for doubt in doubt_what_was_seen(
                    one.described,
                    one.failure,
                    growth_bytes=one.growth_bytes,
                    has_no_evaluation=question.has_no_evaluation,
                    waits_for_the_end=question.watch.until == "end",
                )
            ),
            *doubt_processes(heard, peaks, recorded.unseen),
        )
    )
    command_run = CommandRun(
        traced=replace(
            traced,
            notes=(
                *traced.notes,
                *note_processes(heard, peaks, pid),
                *_once(
                    note
                    for one in seen
                    for note in note_what_was_seen(one.described, growth_bytes=one.growth_bytes)
                ),
            ),
            doubts=tuple(doubts),
            rank=rank,
            world_size=heard.world.size if heard.world else 1,
        ),
        batches=tuple(_batches(described)),
        cudnn=cudnn,
        num_steps=described.num_steps,
        why=described.why,
        peak_bytes=_peak_bytes(described),
        is_protected=recorded.is_protected,
        world=heard.world,
        present=frozenset((*heard.ranks.values(), *heard.waiting.values())),
        rank=rank,
        stages=tuple(described.pipeline),
        sent=recorded.sent,
        device=_device_of(described),
    )
    return _RunOnce(
        run=command_run,
        has_data_sizes=any(one.num_data_sized_results for one, _ in found.values()),
        seconds=recorded.seconds,
    )


def _check(described: Description, run: RecordedRun, runtime: str, seconds: float) -> TracedJob:
    """Return the job's timeline; where the simulator cannot know better, that is not our bug."""
    try:
        return to_traced(run, runtime, seconds)
    except SimulationError:
        if not has_unknown_pools(described):
            raise
        raise UnsupportedJobError(
            "the job uses memory pools of its own (torch.cuda.MemPool) in a way that memgate cannot"
            " follow: pools with an allocator or rules of their own, or a torch that does not say"
            " what is in them; run it without them, with as much memory left over as they keep"
        ) from None


def _batches(described: Description) -> Iterator[BatchShape]:
    """Yield the tensors that modules were called with in training, those of one shape once."""
    counts: Counter[SeenTensor] = Counter()
    for calls, count in described.shapes:
        for tensor in (tensor for call in calls for tensor in call):
            counts[tensor] += count
    for tensor, count in counts.items():
        yield BatchShape(tensor.name, tensor.shape, tensor.dtype, count)


def _read_all(recorded: Recorded) -> _Found:
    """Read what each process recorded."""
    found = {pid: read_recording(data) for pid, data in recorded.recordings.items()}
    described, rows = found.get(recorded.pid, (None, b""))
    if described is not None and described.why == "end" and not described.exit_status:
        # not all ways to exit can be seen from within
        described = structs.replace(described, exit_status=recorded.status or 0)
        found[recorded.pid] = described, rows
    return found


def _find_decisive(found: _Found) -> int:
    """Return the process that takes the most, of those that trained or were seen to their end."""

    def rank(pid: int) -> tuple[bool, int]:
        described, _ = found[pid]
        return described.num_steps > 0 or described.why == "end", _peak_bytes(described)

    return max(found, key=rank)


def _peak_bytes(described: Description) -> int:
    return described.memory_stats["reserved_bytes.all.peak"]


def _device_of(described: Description) -> int | None:
    """Return the GPU that a process used; None if it was shown no other."""
    return None if "sees_one_device" in described.notes else described.own_device


def _find_seen(found: _Found, decisive: int, run: RecordedRun, heard: Heard) -> list[_Seen]:
    """Return what is known of the decisive process, and of others that train or have failed."""
    others = {
        pid: interpret(described, rows)
        for pid, (described, rows) in found.items()
        if pid != decisive and (described.num_steps or pid in heard.failures)
    }
    return [
        _Seen(found[pid][0], heard.failures.get(pid), find_growth(kept_at_steps(one)))
        for pid, one in ({decisive: run} | others).items()
    ]


def _once(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Return the first reason of each kind."""
    known: dict[str, Reason] = {}
    for reason in reasons:
        known.setdefault(reason.code, reason)
    return tuple(known.values())


def _check_that_it_trained(found: _Found, recorded: Recorded, question: CommandQuestion) -> None:
    """A failure after enough steps is a doubt; before that there is no answer."""
    pid = max(found, key=lambda one: (found[one][0].num_steps > 0, _peak_bytes(found[one][0])))
    described, _ = found[pid]
    failure = recorded.heard.failures.get(pid)
    if failure is not None and described.num_steps < MIN_STEPS:
        output = output_of(recorded, failure)
        raise explain_failure(failure, described.unmodelled, question, output)
    if described.num_steps == 0 and described.unmodelled:
        raise not_modelled(described.unmodelled)
    is_given_up = described.exit_status and described.num_steps < MIN_STEPS
    if described.num_steps == 0 or is_given_up:
        raise explain_status(recorded, question, num_steps=described.num_steps)
