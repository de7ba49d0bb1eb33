"""Answers as the command line prints them."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.decision import Decision
from memgate.report import Fit, Oom, Reason
from memgate.units import GIB
from memgate_service.cli.printing import print_estimate, print_fit
from tests.builders import build_estimate

OOM = Oom(event=3, message="CUDA out of memory. Tried to allocate 2.00 GiB.")


def _print(capsys: pytest.CaptureFixture[str], server: str = "", **fields: Any) -> list[str]:
    timings = {"trace": 1, "replay": 1, "total": 2100}
    print_estimate(build_estimate(timings_ms=timings, **fields), server=server)
    return capsys.readouterr().out.splitlines()


def test_a_refusal_is_the_explanation_and_what_holds_the_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Headline, what would help, why; then the peak with ample memory, and no size beside these."""
    note = Reason(code="X", message="install 'memgate[client]' first")

    lines = _print(
        capsys,
        decision=Decision.REJECT,
        needs_bytes=15 * GIB,
        least_bytes=14 * GIB,
        reasons=[note],
        largest_batch_size=96,
        oom=OOM,
    )

    assert lines[:4] == [
        "reject: does not fit on rtx-3060: needs 15.00 GiB, rtx-3060 has 11.65 GiB",
        "try: batch size 96 fits, the largest that does",
        "try: as it is, it fits on an empty rtx-3060, h200",
        "note: install 'memgate[client]' first",
    ]
    table = "\n".join(lines[4:-4])
    assert all(part in table for part in ("at the peak", "activations", "4.00 GiB", "in all"))
    assert lines[-4].startswith("peak: 4.37 GiB with ample memory and the usual CUDA context")
    assert lines[-3] == f"PyTorch would say: {OOM.message}"
    assert lines[-1] == "phantom engine, torch-2.14, 2.1 s"


def test_a_job_that_may_live_is_not_said_to_die(capsys: pytest.CaptureFixture[str]) -> None:
    """It dies with the usual CUDA context, and may live with a smaller one."""
    lines = _print(capsys, decision=Decision.UNCERTAIN, needs_bytes=12 * GIB, oom=OOM)

    assert lines[0] == (
        "uncertain: may not fit on rtx-3060: needs 4.00 GiB to 12.00 GiB, depending on the CUDA"
        " context, rtx-3060 has 11.65 GiB"
    ), "in one line, however narrow the terminal"
    assert f"PyTorch may say: {OOM.message}" in lines


@pytest.mark.parametrize(
    ("needs_bytes", "fits_on", "want"),
    [
        (15 * GIB, ["h200"], ["fits on: h200"]),
        (9999 * GIB, [], ["fits on: no GPU of the catalogue"]),
        (15 * GIB, [], []),
    ],
    ids=["on some", "on none", "in doubt everywhere"],
)
def test_gpus_are_named_that_would_admit_the_job(
    capsys: pytest.CaptureFixture[str], needs_bytes: int, fits_on: list[str], want: list[str]
) -> None:
    """That there are none is said if it is too large, and not if it is in doubt."""
    lines = _print(capsys, decision=Decision.REJECT, needs_bytes=needs_bytes, fits_on=fits_on)

    assert [line for line in lines if line.startswith("fits on: ")] == want


@pytest.mark.parametrize(
    ("page", "server", "want"),
    [
        ("/ui/jobs/0a", "http://127.0.0.1:8080/", "page: http://127.0.0.1:8080/ui/jobs/0a"),
        ("https://m.example/ui/jobs/0a", "http://n:1", "page: https://m.example/ui/jobs/0a"),
        (None, "", None),
    ],
    ids=["a path", "a URL", "no server"],
)
def test_a_servers_answer_has_a_page(
    capsys: pytest.CaptureFixture[str], page: str | None, server: str, want: str | None
) -> None:
    """A link that can be opened: from a refusal at a terminal to what explains it."""
    lines = _print(capsys, server, page=page)

    assert [line for line in lines if line.startswith("page: ")] == ([want] if want else [])


def test_every_door_says_in_one_line_where_a_job_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """The words are the answer's own."""
    fit = Fit(gpus=[], smallest=None, page="/ui/jobs/0a")

    print_fit(fit, server="http://m")

    assert capsys.readouterr().out.splitlines()[-2:] == [fit.headline, "page: http://m/ui/jobs/0a"]
