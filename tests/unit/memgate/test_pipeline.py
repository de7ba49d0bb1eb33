"""From a timeline to an answer."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace

import pytest

from memgate import pipeline
from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.capacity import MemoryNeeds
from memgate.context import MAX_CONTEXT_BYTES, MIN_CONTEXT_BYTES, USUAL_CONTEXT_BYTES
from memgate.decision import Decision
from memgate.gpus import CATALOGUE, GpuTarget, find_gpu
from memgate.nccl import NO_COMMUNICATION, Communicator, NcclUse, estimate_nccl
from memgate.pipeline import estimate_timeline
from memgate.report import Estimate, Reason
from memgate.timeline import Alloc, Category, Free, Label, SetFraction, Timeline
from memgate.units import GIB
from memgate.verdict import decide
from tests.builders import mib


def _timeline(*sizes: int) -> Timeline:
    events = tuple(Alloc(number, size) for number, size in enumerate(sizes))
    return Timeline(events=events, labels=(Label(Category.ACTIVATIONS, "layer"),) * len(sizes))


def _estimate(timeline: Timeline, gpu: str = "rtx-4060", used: int = 0) -> Estimate:
    return estimate_timeline(
        timeline,
        GpuTarget(gpu=find_gpu(gpu), already_used_bytes=used),
        engine="phantom",
        runtime="torch-2.14",
        versions={},
    )


def test_it_fits_on_no_gpu_that_its_pytorch_was_not_built_for() -> None:
    """However much memory that has."""
    target = GpuTarget(gpu=find_gpu("h200"))
    said = estimate_timeline(
        _timeline(GIB),
        target,
        engine="phantom",
        runtime="torch-2.14",
        versions={},
        architectures=("sm_90",),
    )

    assert set(said.fits_on) == {
        name for name, gpu in CATALOGUE.items() if gpu.compute_capability == (9, 0)
    }


def test_a_small_job_is_admitted() -> None:
    """Everything adds up, and the smallest GPU that fits is named first."""
    answer = _estimate(_timeline(GIB, GIB))

    assert answer.decision == "admit"
    assert answer.peak_bytes == 2 * GIB + answer.context_bytes
    assert sum(answer.breakdown.values()) == answer.peak_bytes
    assert answer.fits_on[0] == "a100-40-1g.5gb"
    assert answer.oom is None
    assert answer.headroom_bytes == answer.capacity_bytes - answer.upper_bound_bytes


def test_a_large_job_is_rejected_with_where_it_dies() -> None:
    """The message says what is needed, what there is, and what to do."""
    answer = _estimate(_timeline(*[GIB] * 9))

    assert answer.decision == "reject"
    (reason,) = answer.reasons
    assert reason.code == "DOES_NOT_FIT"
    assert reason.message == "needs 9.77 GiB, rtx-4060 has 7.75 GiB"
    assert answer.explanation.headline == f"does not fit on rtx-4060: {reason.message}"
    assert answer.explanation.helps == [f"as it is, it fits on {', '.join(answer.fits_on[:3])}"]
    assert answer.oom is not None
    assert answer.oom.event == 7
    assert "rtx-4060" not in answer.fits_on


def test_memory_that_others_use_counts() -> None:
    """A job that fits an empty GPU need not fit a shared one."""
    assert _estimate(_timeline(4 * GIB), used=5 * GIB).decision == "reject"


@pytest.mark.parametrize(
    ("size", "want_decision", "want_codes"),
    [
        (GIB, "uncertain", ["PROFILE_INSTEAD", "FITS", "SIZES_DEPEND_ON_DATA"]),
        (9 * GIB, "reject", ["DOES_NOT_FIT", "PROFILE_INSTEAD", "SIZES_DEPEND_ON_DATA"]),
    ],
)
def test_nothing_is_admitted_upon_a_doubtful_figure(
    size: int, want_decision: str, want_codes: list[str]
) -> None:
    """The first reason is the one that decided; a mere note decides nothing."""
    answer = estimate_timeline(
        _timeline(size),
        GpuTarget(gpu=find_gpu("rtx-4060")),
        engine="profile",
        runtime="torch-2.14",
        versions={},
        notes=[Reason(code="SIZES_DEPEND_ON_DATA", message="")],
        doubts=[Reason(code="PROFILE_INSTEAD", message="")],
    )

    assert answer.decision == want_decision
    assert [reason.code for reason in answer.reasons] == want_codes


@pytest.mark.parametrize(
    ("capacity", "want"),
    [
        (1013 * 10**7 + MAX_CONTEXT_BYTES, Decision.ADMIT),
        (1013 * 10**7 + MAX_CONTEXT_BYTES - 1, Decision.UNCERTAIN),
        (10**10 + MIN_CONTEXT_BYTES, Decision.UNCERTAIN),
        (10**10 + MIN_CONTEXT_BYTES - 1, Decision.REJECT),
    ],
)
def test_between_the_least_and_the_most_it_is_uncertain(capacity: int, want: Decision) -> None:
    """The estimate's own error and the context are not known exactly, and the answer says so."""
    gpu = replace(find_gpu("a100-40"), memory_bytes=capacity)

    assert decide(10**10, gpu).decision is want


def test_decisions_combine_to_the_worst() -> None:
    """Many devices: the worst decides."""
    assert min(Decision.ADMIT, Decision.UNCERTAIN, Decision.REJECT) is Decision.REJECT


class TestMinCapacity:
    """The smallest capacity in which a timeline still runs."""

    def test_cached_memory_is_not_needed(self) -> None:
        """Two segments reserved, one needed at a time: under pressure one suffices."""
        timeline = Timeline(events=(Alloc(0, mib(60)), Free(0), Alloc(1, mib(80))))

        assert self._find(timeline) == mib(80)

    def test_it_is_never_below_what_is_in_use(self) -> None:
        """Blocks in use cannot be given back."""
        assert self._find(_timeline(mib(30), mib(50))) == mib(80)

    def test_the_peak_itself_may_not_suffice(self) -> None:
        """The search goes above what was reserved if it must."""
        events = (SetFraction(0.5), *_timeline(mib(30), mib(50)).events)

        assert self._find(Timeline(events=events)) == mib(160)

    def test_luck_is_not_counted_on(self) -> None:
        """It lives in 52 MiB and dies in 54 to 62: with more, a cache is kept, and cut up."""
        config = parse_alloc_conf("")
        for size, want in ((52, True), (54, False), (62, False), (64, True)):
            assert (replay(_LUCKY, config, mib(size)).oom is None) is want

        assert self._find(_LUCKY) == mib(64)

    @pytest.mark.parametrize(("died_at", "want"), [(70, 72), (71, 72), (100, 102)])
    def test_a_capacity_in_which_it_died_is_too_small(self, died_at: int, want: int) -> None:
        """Whatever the search would find."""
        assert self._find(_LUCKY, died_at_bytes=mib(died_at)) == mib(want)

    def test_who_dies_on_a_gpu_needs_more_than_it_has(self) -> None:
        """The answer does not contradict itself."""
        gpu = replace(find_gpu("a100-40"), memory_bytes=USUAL_CONTEXT_BYTES + mib(58))

        target = GpuTarget(gpu=gpu)
        said = estimate_timeline(
            _LUCKY, target, engine="phantom", runtime="torch-2.14", versions={}
        )

        assert said.oom is not None
        assert said.required_bytes > said.capacity_bytes
        assert said.decision != "admit"

    def test_a_search_that_was_stopped_is_said(self) -> None:
        """The answer is enough, but less may do."""
        sizes = range(20, 800, 20)
        events = [
            event
            for size in sizes
            for event in (Alloc(size // 20 - 1, mib(size)), Free(size // 20 - 1))
        ]
        timeline = Timeline(events=tuple(events), labels=_timeline(*[1] * len(sizes)).labels)
        needs = MemoryNeeds(timeline, parse_alloc_conf(""), max_events=0)
        target = GpuTarget(gpu=find_gpu("a100-40"))
        said = estimate_timeline(
            timeline, target, engine="phantom", runtime="torch-2.14", versions={}, needs=needs
        )

        assert "whether less suffices was not searched to the end" in said.why("SEARCH_STOPPED")

    @staticmethod
    def _find(timeline: Timeline, died_at_bytes: int = 0) -> int:
        needs = MemoryNeeds(timeline, parse_alloc_conf(""))
        return needs.least_bytes(died_at_bytes=died_at_bytes)


#: the third block goes where the first was, if that is still there
_LUCKY = Timeline(
    events=(
        *(Alloc(0, mib(24)), Free(0), Alloc(1, mib(30))),
        *(Alloc(2, mib(12)), Free(1), Alloc(3, mib(40))),
    ),
    labels=_timeline(*[1] * 4).labels,
)


def test_the_stages_bear_the_numbers_of_their_modules() -> None:
    """A comment ``# N.`` in pipeline.py stands above a function of a module of stage N."""
    source = inspect.getsource(pipeline)
    found = re.findall(r"# (\d)\. .+\n\s+(?:\w+ = |return )(\w+)\(", source)

    numbers = [number for number, _ in found]

    assert numbers == sorted(numbers) == re.findall(r"# (\d)\. ", source)
    assert set(numbers) == set("23456")
    for number, name in found:
        module = inspect.getmodule(getattr(pipeline, name))
        assert (inspect.getdoc(module) or "").startswith(f"Stage {number}: "), name


def test_what_nccl_takes_is_part_of_the_answer() -> None:
    """The breakdown adds up, the range widens what is uncertain, and a reason names it."""
    timeline = _timeline(GIB, GIB)
    target = GpuTarget(gpu=find_gpu("a100-80"))
    used = NcclUse(communicators=(Communicator(num_ranks=8, ranks_on_node=8),))
    nccl = estimate_nccl(used, target.gpu)
    alone, shared = (
        estimate_timeline(
            *(timeline, target), engine="phantom", runtime="torch-2.14", versions={}, used=one
        )
        for one in (NO_COMMUNICATION, used)
    )

    assert shared.needs_bytes - alone.needs_bytes == nccl.high_bytes
    assert shared.least_bytes - alone.least_bytes == nccl.low_bytes
    assert shared.peak_bytes - alone.peak_bytes == nccl.expected_bytes
    assert shared.required_bytes - alone.required_bytes == nccl.expected_bytes
    assert shared.breakdown["communication"] == nccl.expected_bytes
    assert sum(shared.breakdown.values()) == shared.peak_bytes
    assert shared.communication_range == nccl
    assert [reason.code for reason in shared.reasons] == ["FITS", "NCCL_MEMORY"]
    assert alone.communication is None
    assert "communication" not in alone.breakdown
    assert [reason.code for reason in alone.reasons] == ["FITS"]
    assert "NCCL" in shared.peak_text
    assert "NCCL" not in alone.peak_text


def test_a_job_between_is_uncertain_because_of_nccl_too() -> None:
    """The words name both things that are not known."""
    used = NcclUse(communicators=(Communicator(num_ranks=8, ranks_on_node=8),))
    said = estimate_timeline(
        *(_timeline(76 * GIB), GpuTarget(gpu=find_gpu("a100-80"))),
        engine="phantom",
        runtime="torch-2.14",
        versions={},
        used=used,
    )

    assert said.decision is Decision.UNCERTAIN
    assert "depending on the CUDA context and NCCL" in said.explanation.headline


@pytest.mark.parametrize(("num_ranks", "is_kept_off"), [(1, False), (2, True)])
def test_ranks_that_communicate_are_admitted_on_no_part_of_a_gpu(
    num_ranks: int, *, is_kept_off: bool
) -> None:
    """NCCL does not support MIG: no part is proposed, and one that is asked for is in doubt."""
    ranks = Communicator(num_ranks=num_ranks, ranks_on_node=num_ranks)
    part, whole = (
        estimate_timeline(
            *(_timeline(GIB), GpuTarget(gpu=find_gpu(name))),
            engine="phantom",
            runtime="torch-2.14",
            versions={},
            used=NcclUse(communicators=(ranks,)),
        )
        for name in ("a100-80-3g.40gb", "a100-80")
    )

    assert whole.decision is Decision.ADMIT
    assert part.fits_on == whole.fits_on
    assert any(find_gpu(name).is_part for name in whole.fits_on) is not is_kept_off
    assert part.decision is (Decision.UNCERTAIN if is_kept_off else Decision.ADMIT)
    codes = [reason.code for reason in part.reasons]
    assert (codes[0] == "NCCL_ON_MIG") is is_kept_off
    assert ("does not support MIG" in part.explanation.text) is is_kept_off
    assert ("ask about a whole GPU" in part.explanation.text) is is_kept_off
