"""What was seen of a job, and what was not -> reasons, each of which takes the plain admit away."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import prod

from memgate.report import Reason
from memgate.units import format_size
from memgate_worker.engines.phantom.kernels import doubt_other_kernels
from memgate_worker.engines.phantom.recorded import (
    Description,
    Raised,
    SeenLongest,
    SeenShapes,
    SeenTensor,
)
from memgate_worker.hook.memgate_hook.marks import StepMark
from memgate_worker.recorder.failures import tell_failure

#: a step that takes so much more than all before it is growth, and not chance
_GROWTH = 1.002

#: steps in a row that each take more than all before them
_GROWING_STEPS = 3

#: few jobs have more steps, and so much for all of them is little: a list of losses
_MANY_STEPS = 100_000
_LITTLE_BYTES = 256 << 20

#: what NVIDIA's libraries may take for themselves: it was measured together with the context
_LIBRARIES_BYTES = 64 << 20

#: of the batches of a data loader, if that is not known; see ``memgate_hook.loaders``
UNKNOWN = 1 << 40

#: the peak that PyTorch counts itself
_RESERVED = "reserved_bytes.all.peak"


def doubt_what_was_seen(
    described: Description,
    failure: Raised | None,
    *,
    growth_bytes: int = 0,
    has_no_evaluation: bool,
    waits_for_the_end: bool = False,
) -> Iterator[Reason]:
    """Yield why a job may take more than what was seen of it.

    Args:
        described: what was seen of it.
        failure: what ended it.
        growth_bytes: by how much more it keeps with each step.
        has_no_evaluation: the caller says so.
        waits_for_the_end: the caller asked for all of it.
    """
    was_stopped = described.why != "end"
    if was_stopped:
        yield from _doubt_what_was_not_reached(
            described, has_no_evaluation=has_no_evaluation, waits_for_the_end=waits_for_the_end
        )
    yield from _doubt_shapes(described)
    if was_stopped and _is_growing(described.steps):
        last = described.steps[-1].peak_bytes
        yield Reason(
            code="STILL_GROWING",
            message=f"each of the last {_GROWING_STEPS} steps took more memory than all before it"
            f" ({format_size(last)} in the last one); watch more of them (memgate run --until end)",
        )
    elif was_stopped and growth_bytes * _MANY_STEPS > _LITTLE_BYTES:
        yield Reason(
            code="STILL_GROWING",
            message=f"the job keeps {format_size(growth_bytes)} more with every step, and never"
            f" less: {_MANY_STEPS:,} steps take {format_size(growth_bytes * _MANY_STEPS)}; watch"
            " more of them (memgate run --until end), or see what it keeps (outputs, losses that"
            " are not detached)",
        )
    if failure is not None or described.exit_status:
        why = tell_failure(failure) if failure else f"exit status {described.exit_status}"
        yield Reason(
            code="FAILED_LATER",
            message=f"the job failed after {described.num_steps} training steps, so what comes"
            f" after that is not known: {why}"
            if described.num_steps
            else f"a process that uses the GPU failed before it trained anything: {why}",
        )
    if described.unmodelled:
        yield Reason(
            code="CALLS_REFUSED",
            message="the job went on after calls that the phantom has no stand-in for"
            f" ({', '.join(described.unmodelled)}); on a GPU they would have done something",
        )
    yield from _doubt_other_memory(described)
    yield from _doubt_other_kernels(described)


def _doubt_other_kernels(described: Description) -> Iterator[Reason]:
    """Yield where other code ran than would run on a GPU."""
    if "compile_ignored" in described.notes:
        yield Reason(
            code="COMPILE_IGNORED",
            message="the job uses torch.compile, and was run without it as --ignore-compile asks;"
            " compiled, it takes other memory",
        )
    yield from doubt_other_kernels(described.notes)


def _doubt_what_was_not_reached(
    described: Description, *, has_no_evaluation: bool, waits_for_the_end: bool
) -> Iterator[Reason]:
    """Yield what comes later in a job that was stopped."""
    if waits_for_the_end:
        yield Reason(
            code="END_NOT_REACHED",
            message=f"the time was up after {described.num_steps} training steps, before the job"
            " had come to its end; allow more (--timeout SECONDS)",
        )
    if not described.has_evaluated and not has_no_evaluation:
        yield Reason(
            code="EVALUATION_NOT_REACHED",
            message=f"the job was stopped after {described.num_steps} training steps,"
            f" {_tell_evaluation(described)}; if one takes more, so does the job: go on until"
            " there was one (memgate run --until evaluation), or say that there is none"
            " (--no-evaluation)",
        )
    if described.larger_loader:
        yield Reason(
            code="LOADER_NOT_SEEN",
            message="a data loader of the job that shuffles was not used so far, and"
            f" {_tell_size(described.larger_loader)}: training may go on with it; watch more of the"
            " job (memgate run --until end)",
        )
    if described.has_idle_optimizer:
        yield Reason(
            code="OPTIMIZER_NOT_REACHED",
            message="the job was stopped before one of its optimizers had made a step, so its state"
            " is not counted; watch more of it (memgate run --watch SECONDS, or --until end)",
        )
    if described.training_loop:
        yield Reason(
            code="TRAINS_AGAIN",
            message=f"the job makes an optimizer in each turn of a loop ({described.training_loop}:"
            " trials, folds, stages), and was stopped in one of the first two: what later ones take"
            " was not seen; watch all of them (memgate run --until end), or ask about the largest"
            " one alone",
        )


def _tell_size(num_samples: int) -> str:
    if num_samples >= UNKNOWN:
        return (
            "how large its batches are is not known (samples take long to make, or it is a stream)"
        )
    return (
        f"its batches are as large as {num_samples} samples of those that were trained with, which"
        " is more than any had"
    )


def _doubt_other_memory(described: Description) -> Iterator[Reason]:
    """Yield how much of the GPU was taken by others than PyTorch's caching allocator."""
    others = described.device_peak_bytes - described.memory_stats.get(_RESERVED, 0)
    if others > _LIBRARIES_BYTES:
        yield Reason(
            code="OUTSIDE_THE_ALLOCATOR",
            message=f"the job took {format_size(others)} of the GPU that PyTorch's caching"
            " allocator did not ask for (a library of its own, cudaMalloc, or"
            " PYTORCH_NO_CUDA_MEMORY_CACHING); they are not in the figures",
        )
    if has_unknown_pools(described):
        which = (
            "with an allocator or rules of their own"
            if described.knows_pools
            else f"of torch {described.versions.get('torch', '')}, which does not say what is in"
            " them"
        )
        yield Reason(
            code="MEMORY_POOLS",
            message=f"the job uses memory pools of its own (torch.cuda.MemPool), {which}: what they"
            " keep apart is counted as if it were in the common pool, and may be more",
        )


def has_unknown_pools(described: Description) -> bool:
    """Tell whether the job has private pools that the simulator cannot follow."""
    is_told_apart = described.knows_pools or "pools" not in described.notes
    return not is_told_apart or "special_pools" in described.notes


def _doubt_shapes(described: Description) -> Iterator[Reason]:
    """Yield why later batches may be larger than those that were seen."""
    longest, varying = described.longest, _varying(described.shapes)
    if longest is not None and not _met_the_longest(described, longest):
        yield Reason(
            code="LONGEST_NOT_RUN",
            message=f"no training step was seen with {_name(longest)}, as --longest asks:"
            f" {_why_no_longest(longest, varying)}",
        )
    elif longest is not None and not longest.in_proportion:
        return
    if described.why != "end" and varying is not None:
        yield Reason(
            code="INPUT_SHAPES_VARY",
            message=f"the shapes of batches vary, and later ones may be larger; the largest in"
            f" {described.num_steps} steps: {_show(varying)}. {_how_to_know_the_longest(longest)}",
        )


def note_what_was_seen(described: Description, *, growth_bytes: int = 0) -> Iterator[Reason]:
    """Yield what there is to know about the answer."""
    if described.is_cudnn_lost:
        yield Reason(
            code="CUDNN_LOST",
            message="the job's own cuDNN crashed when it was asked for plans for this GPU, and was"
            " not asked again; from then on, workspaces of convolutions are taken to be 0 bytes."
            " If there is no memory for one, PyTorch takes another plan",
        )
    longest = described.longest
    if longest is not None and _met_the_longest(described, longest):
        largest = max((calls for calls, _ in described.shapes), key=_num_elements)
        yield Reason(
            code="LONGEST_BATCH",
            message=f"the answer is for {_name(longest)}, as --longest asks; the largest training"
            f" step had {_show(largest)}",
        )
    if described.why != "end":
        evaluated = " and an evaluation" if described.has_evaluated else ""
        kept = f", and kept {format_size(growth_bytes)} more with every step"
        yield Reason(
            code="LATER_NOT_SEEN",
            message=f"the job was watched for {described.num_steps} training steps{evaluated}"
            f"{kept if growth_bytes else ''}"
            "; what comes later (larger batches, layers that are unfrozen) was not seen: go on to"
            " the end with memgate run --until end",
        )


def _name(longest: SeenLongest) -> str:
    if longest.length is None:
        return "a batch of the longest samples of its data set"
    return f"a longest batch of {longest.length}"


def _met_the_longest(described: Description, longest: SeenLongest) -> bool:
    """Tell whether a step was as long; if nothing varies, the batches may all be that long."""
    if longest.is_run or longest.longer is not None:
        return longest.longer is None
    shapes = [tensor.shape for calls, _ in described.shapes for call in calls for tensor in call]
    is_there = any(longest.length in shape[1:2] for shape in shapes)  # behind it are features
    return is_there and not longest.problem and _varying(described.shapes) is None


def _why_no_longest(longest: SeenLongest, varying: list[list[SeenTensor]] | None) -> str:
    if longest.longer is not None:
        return f"a batch of {longest.longer} was seen, which is longer"
    if longest.problem:
        return longest.problem
    if varying is None:
        return "no dimension of its batches was seen to vary, so it is not known what to pad"
    return (
        "its batches were not seen to vary where they come from, a data loader or a line that moves"
        " them to the GPU; or the job cuts them, or ended too early"
    )


def _how_to_know_the_longest(longest: SeenLongest | None) -> str:
    if longest is not None and longest.is_run and longest.length is None:
        return (
            "Several of their lengths vary on their own, and the longest samples were chosen by all"
            " of them together; go on to the end (memgate run --until end)"
        )
    if longest is not None and longest.is_run:
        return (
            f"What varies on its own was made longer in proportion to the {longest.length} of"
            " --longest, and may be longer still; go on to the end (memgate run --until end)"
        )
    return (
        "Answer for the longest one (memgate run --longest N, or --longest data), or go on to the"
        " end (memgate run --until end)"
    )


def _varying(shapes: Sequence[SeenShapes]) -> list[list[SeenTensor]] | None:
    """Return the largest step, if later ones may be larger.

    A last batch that is smaller than all others, and otherwise like them, is no variation. Nor are
    calls that only some steps make, with shapes that are usual (samples of a generator).
    """
    if len(shapes) < 2:
        return None
    largest, _ = max(shapes, key=lambda seen: _num_elements(seen[0]))
    if _is_usual_to_be_full(shapes) and all(_is_part_of(step, largest) for step, _ in shapes):
        return None
    return largest


def _is_usual_to_be_full(shapes: Sequence[SeenShapes]) -> bool:
    """Tell whether most steps have as many samples as the fullest one."""
    counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for step, count in shapes:
        for one_sample, num_samples in _largest_of_each(step).items():
            counts[one_sample][num_samples] += count
    return all(2 * of_one[max(of_one)] >= sum(of_one.values()) for of_one in counts.values())


def _largest_of_each(step: Sequence[Sequence[SeenTensor]]) -> dict[tuple[int, ...], int]:
    """Return the most samples that a step has of each shape."""
    most: dict[tuple[int, ...], int] = {}
    for tensor in (tensor for call in step for tensor in call if tensor.shape):
        num_samples, *one_sample = tensor.shape
        key = tuple(one_sample)
        most[key] = max(num_samples, most.get(key, 0))
    return most


def _num_elements(step: Sequence[Sequence[SeenTensor]]) -> int:
    return sum(prod(tensor.shape) for call in step for tensor in call)


def _is_part_of(
    step: Sequence[Sequence[SeenTensor]], largest: Sequence[Sequence[SeenTensor]]
) -> bool:
    """Tell whether a step differs only by fewer samples, or fewer calls of the same shapes."""
    usual = {tensor.shape[1:] for call in largest for tensor in call}
    return all(tensor.shape[1:] in usual for call in step for tensor in call)


def _show(step: Sequence[Sequence[SeenTensor]]) -> str:
    shapes = [" x ".join(map(str, tensor.shape)) for call in step for tensor in call]
    return ", ".join(dict.fromkeys(shape or "a number" for shape in shapes))


def _is_growing(steps: Sequence[StepMark]) -> bool:
    if len(steps) <= _GROWING_STEPS:
        return False
    before = max(step.peak_bytes for step in steps[:-_GROWING_STEPS])
    for step in steps[-_GROWING_STEPS:]:
        if step.peak_bytes <= before * _GROWTH:
            return False
        before = step.peak_bytes
    return True


def _tell_evaluation(described: Description) -> str:
    """Say how much of an evaluation was seen, if that is not enough."""
    stages = [mark.stage for mark in described.stages]
    if "evaluate" not in stages:
        return "before any evaluation"
    if stages[-1] == "evaluate":
        return "in the middle of an evaluation whose batches vary or take more and more"
    return "and what it evaluated until then is too little, or too early, to know what others take"
