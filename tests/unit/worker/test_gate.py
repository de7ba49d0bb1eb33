"""One rank of a job runs, the processes of all others wait: in real processes, without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memgate_worker.recorder.environment import HOOK_DIR
from memgate_worker.recorder.listening import HeardWorld, Listening

#: as torchrun tells the third of four processes on what it takes for the only node
TOLD = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "2",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
}
LAYOUT = {"MEMGATE_LAYOUT": "[4, 2]"}

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    """What the processes of a run are heard by."""
    with Listening(tmp_path, lambda *_: pytest.fail("nobody asks"), lambda _: None) as listening:
        yield listening
    assert listening.crash is None


@pytest.fixture
def start(listening: Listening, tmp_path: Path) -> Iterator[Start]:
    """Start processes of a run, which end with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, rank: int, **variables: str) -> subprocess.Popen[str]:
        ours = {
            "PYTHONPATH": str(HOOK_DIR),
            "MEMGATE_RUN_DIR": str(tmp_path),
            "MEMGATE_RANK": str(rank),
        }
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", code],
                env={"PATH": os.environ["PATH"], **ours, **variables},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _wait(listening: Listening, is_there: Callable[[], object]) -> None:
    with listening.changed:
        assert listening.changed.wait_for(is_there, timeout=60)


SHOW = """
import json, os, sys
print(json.dumps([os.environ.get(name) for name in
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE")]))
"""


def test_the_rank_that_runs_has_the_variables_of_its_node(
    start: Start, listening: Listening
) -> None:
    """Its launcher believes that there is one node."""
    said, _ = start(SHOW, 6, **TOLD, **LAYOUT).communicate()

    assert json.loads(said) == ["6", "8", "2", "1", "2"]
    _wait(listening, lambda: listening.heard.ranks)
    assert [*listening.heard.ranks.values()] == [6]
    assert listening.heard.world == HeardWorld(8)


def test_another_rank_waits_and_ends_well(start: Start, listening: Listening) -> None:
    """Before any code of the job; it says which one it is."""
    process = start("print('ran')", 7, **TOLD, **LAYOUT)
    _wait(listening, lambda: listening.heard.waiting)
    assert process.poll() is None

    listening.let_go()
    said, _ = process.communicate()

    assert (process.returncode, said) == (0, "")
    assert [*listening.heard.waiting.values()] == [6]


def test_a_launcher_may_tell_its_processes_itself(start: Start, listening: Listening) -> None:
    """DeepSpeed's does, for every node."""
    told = {"RANK": "6", "WORLD_SIZE": "7", "LOCAL_RANK": "2", "LOCAL_SIZE": "3"}
    said, _ = start(SHOW, 6, **told, MEMGATE_LAYOUT="null").communicate()

    assert json.loads(said)[:3] == ["6", "7", "2"]
    _wait(listening, lambda: listening.heard.ranks)
    assert listening.heard.world == HeardWorld(7)


def test_one_that_comes_late_does_not_wait(start: Start, listening: Listening) -> None:
    """The rank that runs may end before others were started."""
    listening.let_go()
    process = start("print('ran')", 7, **TOLD, **LAYOUT)

    assert (process.communicate()[0], process.returncode) == ("", 0)


def test_what_a_rank_starts_is_no_other_rank(start: Start) -> None:
    """Data loaders and helpers of its own, whatever they are told."""
    code = f"""
import os, subprocess, sys
os.environ["LOCAL_RANK"] = "3"
subprocess.run([sys.executable, "-c", {SHOW!r}])
"""
    said, _ = start(code, 6, **TOLD, **LAYOUT).communicate()

    assert json.loads(said)[0] == "6"


def test_without_a_launcher_every_process_runs(start: Start, listening: Listening) -> None:
    """Variables alone say nothing: a cluster sets them for launchers, too."""
    said, _ = start(SHOW, 7, **TOLD).communicate()

    assert json.loads(said)[:2] == ["2", "4"]
    assert (listening.heard.world, listening.heard.waiting) == (None, {})


def test_a_launcher_tells_its_processes_once(start: Start, listening: Listening) -> None:
    """Through one that is none of them, and past variables that were its own."""
    code = f"""
import os, subprocess, sys
from memgate_hook import gate
from memgate_hook.layout import Layout
gate.launch(Layout(4, 2), "a launcher")
between = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]],"
between += "env=dict(__import__('os').environ, LOCAL_RANK='1', RANK='1', WORLD_SIZE='4'))"
subprocess.run([sys.executable, "-c", between, {SHOW!r}])
"""
    said, _ = start(code, 5, RANK="0", LOCAL_RANK="0").communicate()

    assert json.loads(said)[:3] == ["5", "8", "1"]
    _wait(listening, lambda: listening.heard.ranks)
    assert listening.heard.world == HeardWorld(8, 4, 2, "a launcher")


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        (
            {"MEMGATE_NPROC": "8"},
            "--nproc 8, but torchrun starts 4 processes on a node: leave --nproc out, or give"
            " torchrun the same number",
        ),
        (
            {"MEMGATE_NNODES": "3"},
            "--nnodes 3, but torchrun is for 2 nodes: leave --nnodes out, or give torchrun the same"
            " number",
        ),
        ({"MEMGATE_NPROC": "4", "MEMGATE_NNODES": "2"}, ""),
        ({"MEMGATE_NPROC": "", "MEMGATE_NNODES": ""}, ""),
    ],
)
def test_a_contradiction_names_both(
    start: Start, listening: Listening, asked: dict[str, str], want: str
) -> None:
    """The launcher's own words, and the caller's."""
    code = """
from memgate_hook import gate
from memgate_hook.layout import Layout
gate.check_layout(Layout(4, 2), "torchrun")
"""
    process = start(code, 0, **asked)
    process.communicate()
    if want:
        _wait(listening, lambda: listening.heard.refusal)

    assert (process.returncode, listening.heard.refusal) == (2 if want else 0, want)
