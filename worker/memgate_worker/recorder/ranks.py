"""A command -> a run for each of its ranks that differs, one after the other; a job of one, alone.

Which ranks are run:

- the first and the last;
- instead of these, one of each stage if the job's pipeline says which ranks those are;
- if two of these need different amounts, the one in the middle between them, and so on, until
  neighbours are alike or `MAX_RANKS` were run. What is then not known is doubted;
- if ranks send to single others, as the stages of a pipeline do that the job has written itself,
  those in between, too, up to `MAX_RANKS`: the first and the last stage may happen to be alike.

All others are taken to be like their neighbours. What a launcher and the processes of one run do
meanwhile is up to ``memgate_hook.gate``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import BinaryIO

from memgate.errors import InputError, LimitExceededError
from memgate.ranks import RANKS_NOT_RUN, name_ranks
from memgate.report import Reason
from memgate.units import MIB, format_size
from memgate_worker.hook.memgate_hook.layout import ToldWorld, find_given_world
from memgate_worker.limits import RunLimits
from memgate_worker.recorder.listening import Heard, HeardWorld
from memgate_worker.recorder.question import CommandQuestion
from memgate_worker.recorder.reading import CommandRun, record_rank

#: each costs a run
MAX_RANKS = 8

#: ranks that need about the same do the same: shards of uneven tensors differ by less
_ALIKE = 0.01
_ALIKE_BYTES = 16 * MIB

#: traffic between two ranks
_DIRECT = frozenset({"send", "receive"})


def record_command(
    question: CommandQuestion,
    *,
    output: BinaryIO | None = None,
    on_progress: Callable[[Heard], None] = lambda _: None,
) -> CommandRun:
    """Run a command on the phantom and return the timeline of its job, with those of its ranks.

    Raises what ``record_rank`` raises, and:
        InputError: if the command has another number of processes than the caller says.
    """
    given = find_given_world(question.environment, question.nproc, question.nnodes)
    question = replace(question, given_world=given)
    start = time.monotonic()
    first = record_rank(question, output=output, on_progress=on_progress)
    if given is not None and not (first.world and first.world.source):
        _check_given(question, given)  # of a launcher, they are its own: one on each node, say
    if first.world is None:
        _check_that_it_is_one(question)
        return first

    def record(rank: CommandQuestion) -> CommandRun:
        return record_rank(rank, output=output, on_progress=on_progress)

    runs = _Runs(question, first, first.world, record, time.monotonic() - start)
    runs.run_the_others()
    return runs.join()


class _Runs:
    """The ranks of a job that were run."""

    def __init__(
        self,
        question: CommandQuestion,
        first: CommandRun,
        world: HeardWorld,
        record: Callable[[CommandQuestion], CommandRun],
        seconds: float,
    ) -> None:
        self._question = question
        self._world = world
        self._record = record
        #: of the first run
        self._seconds = seconds
        self._start = time.monotonic() - seconds
        self._runs = {first.rank: first}
        self._first = first
        self._is_known = world.source or (question.given_world and len(first.present) <= 1)
        self._why_not = ""

    def run_the_others(self) -> None:
        """Run ranks until those that were not run are known to be like those that were."""
        # Each stage may ask the one before it for shapes.
        for rank in sorted(self._first.stages) or [self._last]:
            self._run(rank)
        while (between := self._find_next()) is not None and not self._why_not:
            self._run(between)

    def join(self) -> CommandRun:
        """Return the first run, with those of the other ranks."""
        ranks = sorted(self._runs)
        first, *others = (self._runs[rank].traced for rank in ranks)
        doubts = (*first.doubts, *self._doubt())
        traced = replace(first, doubts=doubts, other_ranks=tuple(others))
        return replace(self._runs[ranks[0]], traced=traced)

    @property
    def _last(self) -> int:
        """The last rank that this command can start: of other nodes, a job may know itself."""
        return self._world.size - 1 if self._is_known else max(self._first.present)

    @property
    def _nproc(self) -> int:
        """Processes of a node."""
        given = self._question.given_world
        here = given.layout.nproc if given else len(self._first.present)
        return self._question.nproc or self._world.nproc or here

    def _run(self, rank: int) -> None:
        if rank in self._runs or self._why_not:
            return
        if not self._first.is_protected:
            self._why_not = "its changes of files are not kept apart (--allow-writes)"
            return
        try:
            again = replace(
                self._question,
                rank=rank,
                num_devices=self._nproc,
                keep=None,
                is_online=False,  # what reports to others has done so
                limits=self._limits(),
                sent={name: sent for run in self._runs.values() for name, sent in run.sent.items()},
            )
            self._runs[rank] = self._record(again)
        except LimitExceededError as error:
            self._why_not = error.message

    def _limits(self) -> RunLimits:
        """Return what is left for one more run, which takes as long as the first."""
        limits = self._question.limits
        with_the_next = limits.seconds - (time.monotonic() - self._start)
        return replace(limits, seconds=with_the_next + self._seconds).after(self._seconds)

    def _find_next(self) -> int | None:
        """Return a rank that must be run, since it may be unlike those that were."""
        unlike = next(self._unlike(), None)
        if len(self._runs) < MAX_RANKS:
            return unlike if unlike is not None else self._find_unseen()
        if unlike is not None:
            self._why_not = f"no more than {MAX_RANKS} ranks are run"
        return None

    def _find_unseen(self) -> int | None:
        """Return the middle of the most ranks that were not run, if each may be a stage."""
        sends = any(_DIRECT & run.traced.traffic.keys() for run in self._runs.values())
        if self._first.stages or not sends:
            return None
        one, other = max(pairwise(sorted(self._runs)), key=lambda pair: pair[1] - pair[0])
        return (one + other) // 2 if other - one > 1 else None

    def _unlike(self) -> Iterator[int]:
        """Yield ranks between two that were run, and that are not alike."""
        for one, other in pairwise(sorted(self._runs)):
            if other - one > 1 and not _are_alike(self._runs[one], self._runs[other]):
                yield (one + other) // 2

    def _find_sharing(self) -> Iterator[int]:
        """Yield ranks that use the GPU of the first of their node, as if they were alone."""
        for rank, run in sorted(self._runs.items()):
            if rank % self._nproc and run.device == 0:
                yield rank

    def _doubt(self) -> Iterator[Reason]:
        sharing = [*self._find_sharing()]
        if sharing:
            count = self._nproc
            together = count * max(run.peak_bytes for run in self._runs.values())
            yield Reason(
                code="RANKS_SHARE_A_GPU",
                message=f"{name_ranks(sharing)} took memory of cuda:0, which is the GPU of the"
                f" first process of a node: all {count} of a node would share it, and take up to"
                f" {format_size(together)} and a CUDA context each; has the job forgotten"
                " torch.cuda.set_device(LOCAL_RANK)?",
            )
        why_not = self._why_not
        if self._last < self._world.size - 1:
            why_not = "the command starts no others; ask about another node as well"
        if why_not:
            yield Reason(
                code=RANKS_NOT_RUN,
                message=f"of {self._world.size} ranks, only {name_ranks(sorted(self._runs))}"
                f" {'was' if len(self._runs) == 1 else 'were'} run, and others may need more:"
                f" {why_not}",
            )


def _are_alike(one: CommandRun, other: CommandRun) -> bool:
    difference = abs(one.peak_bytes - other.peak_bytes)
    return difference <= max(_ALIKE_BYTES, _ALIKE * max(one.peak_bytes, other.peak_bytes))


def _check_given(question: CommandQuestion, given: ToldWorld) -> None:
    """Refuse what the caller says otherwise than the variables of the command."""
    size = int(question.environment[given.source])
    asked = (question.nproc or 0) * (question.nnodes or 0)
    if asked and asked != size:
        raise InputError(
            f"--nproc {question.nproc} --nnodes {question.nnodes} are {asked} processes, but the"
            f" variable {given.source} says {size}: leave one of them out"
        )
    layout = given.layout
    for option, said, found in (
        ("--nproc", question.nproc, layout.nproc),
        ("--nnodes", question.nnodes, layout.nnodes),
    ):
        if said and (said != found or layout.world_size != size):
            raise InputError(
                f"{option} {said}, but by the command's variables there are {size} processes"
                f" ({given.source}), {layout.nproc} on a node: leave one of them out, or make them"
                " agree"
            )


def _check_that_it_is_one(question: CommandQuestion) -> None:
    asked = (question.nproc or 1) * (question.nnodes or 1)
    if asked > 1:
        raise InputError(
            f"{_name_options(question)}, but the command ran as"
            " one process that joined no process group: start it with what starts its processes"
            f" (torchrun --nproc-per-node {question.nproc or 1}, accelerate launch, deepspeed), or"
            f" with the variables that it reads (RANK=0 WORLD_SIZE={asked})"
        )


def _name_options(question: CommandQuestion) -> str:
    """Name what was asked for, and only that: ``--nproc 8``."""
    given = {"--nproc": question.nproc, "--nnodes": question.nnodes}
    return " ".join(f"{name} {number}" for name, number in given.items() if number)
