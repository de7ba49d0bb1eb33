"""What a verdict says, in the words of every door."""

from __future__ import annotations

import pytest

from memgate.decision import Decision
from memgate.errors import Fault
from memgate.explanation import Sizes, compare_sizes, describe_peak, explain, explain_fault
from memgate.units import GIB

FITS = Sizes(needs_bytes=6 * GIB, least_bytes=5 * GIB, available_bytes=8 * GIB)
CLOSE = Sizes(needs_bytes=9 * GIB, least_bytes=7 * GIB, available_bytes=8 * GIB)
TOO_LARGE = Sizes(needs_bytes=10 * GIB, least_bytes=9 * GIB, available_bytes=8 * GIB)


@pytest.mark.parametrize(
    ("decision", "sizes", "want"),
    [
        (Decision.ADMIT, FITS, "fits on t4: needs 6.00 GiB, t4 has 8.00 GiB"),
        (Decision.REJECT, TOO_LARGE, "does not fit on t4: needs 10.00 GiB, t4 has 8.00 GiB"),
        (
            Decision.UNCERTAIN,
            FITS,
            "may not fit on t4: needs 6.00 GiB, t4 has 8.00 GiB, but the estimate is in doubt",
        ),
        (
            Decision.UNCERTAIN,
            CLOSE,
            "may not fit on t4: needs 7.00 GiB to 9.00 GiB, depending on the CUDA context,"
            " t4 has 8.00 GiB",
        ),
        (Decision.UNKNOWN, FITS, "is not known to fit on t4: needs 6.00 GiB, t4 has 8.00 GiB"),
    ],
)
def test_the_headline_is_one_number_against_another(
    decision: Decision, sizes: Sizes, want: str
) -> None:
    """A range is told only where its two ends decide differently."""
    assert explain(decision, "t4", sizes).headline == want


def test_sizes_are_compared_in_the_words_of_the_headline() -> None:
    """A reason and the headline never state different sizes."""
    assert explain(Decision.REJECT, "t4", TOO_LARGE).headline.endswith(
        compare_sizes("t4", TOO_LARGE)
    )


def test_sizes_that_look_the_same_are_told_apart() -> None:
    """A job that needs 8.00 GiB and does not fit into 8.00 GiB is a riddle."""
    sizes = Sizes(needs_bytes=8 * GIB + 5, least_bytes=8 * GIB + 2, available_bytes=8 * GIB)

    assert compare_sizes("t4", sizes) == "needs 8.00 GiB, t4 has 8.00 GiB, 5 bytes too little"


def test_what_others_use_is_not_the_job_to_have() -> None:
    """A T4 has 14.56 GiB: where it is said to have less, the rest is in use."""
    sizes = TOO_LARGE._replace(used_bytes=6 * GIB)
    said = explain(Decision.REJECT, "t4", sizes, fits_on=["t4", "a30"])

    assert said.headline == "does not fit on t4: needs 10.00 GiB, t4 has 8.00 GiB left"
    assert said.helps == ["as it is, it fits on an empty t4, a30"]


def test_what_would_help_comes_after_why() -> None:
    """The batch first: it needs no other GPU; then the smallest GPUs, three at most."""
    said = explain(
        Decision.REJECT,
        "t4",
        TOO_LARGE,
        why=["sizes depend on data"],
        largest_batch_size=1024,
        smaller_batch="batch size 8 would be admitted on t4",
        fits_on=["a30", "a10", "l4", "h100"],
    )

    assert said.helps == [
        "batch size 1,024 fits, the largest that does",
        "as it is, it fits on a30, a10, l4",
    ]
    assert said.text == "; ".join([said.headline, "sizes depend on data", *said.helps])


def test_a_smaller_batch_is_named_while_the_largest_is_not_known() -> None:
    """Better a way out now than the best one later."""
    said = explain(Decision.REJECT, "t4", TOO_LARGE, smaller_batch="batch size 8 would do")

    assert said.helps == ["batch size 8 would do"]


def test_another_gpu_does_not_help_against_a_doubt() -> None:
    """The run is in doubt, and it is the same run on every GPU."""
    said = explain(Decision.UNCERTAIN, "t4", FITS, why=["sizes depend on data"], fits_on=["a30"])

    assert said.helps == []


def test_what_fits_needs_no_help() -> None:
    """Advice for an admitted job would only raise doubts."""
    said = explain(Decision.ADMIT, "t4", FITS, largest_batch_size=9, fits_on=["t4"])

    assert said.helps == []


def test_a_peak_above_what_is_needed_is_explained() -> None:
    """Otherwise two sizes contradict each other: it needs 6 GiB and takes 7."""
    assert describe_peak(5 * GIB, 6 * GIB) == (
        "5.00 GiB with ample memory and the usual CUDA context; what it needs allows for a larger"
        " one"
    )
    assert describe_peak(5 * GIB, 6 * GIB, has_nccl=True) == (
        "5.00 GiB with ample memory, the usual CUDA context and what NCCL is expected to take; what"
        " it needs allows for more of both"
    )
    assert describe_peak(7 * GIB, 6 * GIB) == (
        "7.00 GiB with ample memory; with less, the allocator gives back what it has cached"
    )


@pytest.mark.parametrize("fault", list(Fault))
def test_every_fault_has_its_own_words(fault: Fault) -> None:
    """Whoever reads why there is no estimate knows whose it is to mend."""
    said = explain_fault(fault, "why not")
    assert said.text.endswith(": why not")
    others = {explain_fault(other, "why not").headline for other in Fault if other is not fault}
    assert said.headline not in others


def test_a_limit_of_ours_is_called_one() -> None:
    """Nobody is to look for a mistake in a job that memgate cannot run."""
    assert "a limit of memgate's, not the job's" in explain_fault(Fault.UNSUPPORTED, "x").headline
