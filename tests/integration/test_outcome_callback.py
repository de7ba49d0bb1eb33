"""The callback of training scripts, in scripts of their own, with a torch that is made up.

What it reads of the real one is tested on the phantom: tests/integration/test_outcome.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.outcomes import take_reports

FAKE_TORCH = """
import sys, types
cuda = types.SimpleNamespace(
    is_initialized=lambda: {initialized},
    device_count=lambda: 2,
    max_memory_reserved=[3 << 20, 5 << 20].__getitem__,
    get_device_name=["A", "B"].__getitem__,
    OutOfMemoryError=type("OutOfMemoryError", (RuntimeError,), {{}}),
)
torch = sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
"""
CALLBACK = """
from memgate import report_when_done
report_when_done("the-job")
"""


@pytest.fixture
def run_script(tmp_path: Path) -> Any:
    """Run a script, with the callback, to its end."""

    def run(
        text: str = "", *, torch: bool = True, initialized: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        fake = FAKE_TORCH.format(initialized=initialized) if torch else ""
        path = tmp_path / "train.py"
        path.write_text(fake + CALLBACK + text)
        return subprocess.run(
            [sys.executable, path],
            env=os.environ | {"PYTHONPATH": os.getcwd()} | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_the_end_of_a_script_is_reported(run_script: Any) -> None:
    """The fullest GPU, without the context; the key is shown; nothing is said."""
    with take_reports() as reports:
        ran = run_script(MEMGATE_URL=f"{reports.url}/", MEMGATE_API_KEY="secret")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert reports.keys == ["Bearer secret"]
    assert reports.told == [
        {
            "job": "the-job",
            "measured_peak_bytes": 5 << 20,
            "is_reserved_only": True,
            "ran_out": False,
            "gpu_product": "B",
        }
    ]


@pytest.mark.parametrize(
    "text",
    [
        "raise cuda.OutOfMemoryError('CUDA out of memory')",
        "try:\n    raise cuda.OutOfMemoryError\nexcept Exception:\n    raise ValueError",
    ],
    ids=["itself", "what-came-of-it"],
)
def test_out_of_memory_is_reported_as_such(run_script: Any, text: str) -> None:
    """And shown as it would be without us."""
    with take_reports() as reports:
        ran = run_script(text, MEMGATE_URL=reports.url)

    assert ran.returncode == 1
    assert "OutOfMemoryError" in ran.stderr
    assert [told["ran_out"] for told in reports.told] == [True]


@pytest.mark.parametrize(
    ("text", "options", "want_words"),
    [
        ("raise ValueError('no data')", {}, "the script ended with ValueError"),
        ("", {"torch": False}, "the script used no GPU"),
        ("", {"initialized": False}, "the script used no GPU"),
        ("cuda.max_memory_reserved = lambda _: 0", {}, "took no memory of a GPU"),
        ("cuda.device_count = lambda: 1 / 0", {}, "ZeroDivisionError: division by zero"),
    ],
)
def test_what_says_nothing_about_the_peak_is_not_reported(
    run_script: Any, text: str, options: Any, want_words: str
) -> None:
    """A line says why; the exit status is the script's own."""
    with take_reports() as reports:
        ran = run_script(text, MEMGATE_URL=reports.url, **options)

    assert reports.told == []
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("memgate: no outcome was reported: ")
    assert want_words in last
    assert ran.returncode == ("ValueError" in text)


@pytest.mark.parametrize(
    ("url", "want_words"),
    [
        ("", "no server is named"),
        ("http://127.0.0.1:1", "the server cannot be reached"),
        ("not a url", "the server cannot be reached"),
    ],
)
def test_without_a_server_a_script_ends_well(run_script: Any, url: str, want_words: str) -> None:
    """One line on standard error."""
    ran = run_script(MEMGATE_URL=url)

    (line,) = ran.stderr.splitlines()
    assert want_words in line
    assert ran.returncode == 0


def test_a_refusal_is_passed_on(run_script: Any) -> None:
    """As the server words it."""
    with take_reports(status=404) as reports:
        ran = run_script(MEMGATE_URL=reports.url)

    assert ran.stderr == "memgate: no outcome was reported: there is no such job\n"


def test_a_server_that_hangs_is_not_waited_for(run_script: Any) -> None:
    """Five seconds at the most."""
    start = time.monotonic()
    with take_reports(delay_seconds=30) as reports:
        ran = run_script(MEMGATE_URL=reports.url)

    assert time.monotonic() - start < 15
    assert ran.returncode == 0
    assert "memgate: no outcome was reported: " in ran.stderr


def test_forks_and_other_ranks_report_nothing(run_script: Any) -> None:
    """One job, one report."""
    fork = "import os\nif os.fork() == 0: sys.exit()\nos.wait()"
    with take_reports() as reports:
        run_script(fork, MEMGATE_URL=reports.url)
        run_script(MEMGATE_URL=reports.url, RANK="1")

    assert len(reports.told) == 1
