"""Ten scripts that nobody has described, at a real Slurm: the right decision, or "cannot tell".

Exhaustive: ``make acceptance-slurm`` runs them; the default run has a sample in
``test_rehearsals``.
"""

from __future__ import annotations

import time

import pytest

from tests.integration.slurm.jobs import NEEDS
from tests.integration.slurm.rehearsing import FITS, PYTHON, TOO_LARGE, Rehearsing, train
from tests.integration.slurm_lab import needs_accounting

pytestmark = [*NEEDS, needs_accounting, pytest.mark.slow]

WITH_ACCOUNTING = True

_WRITES = """
open("written.txt", "w").write("x")
import os; os.remove("keep.txt")
"""
_CONNECTS = """
import socket
try:
    socket.create_connection(("192.0.2.1", 80), 5)
except OSError as error:
    assert error.errno == 101, error
"""
_BEGIN = f"{PYTHON} -c "

#: a script, options, more files, and the decisions that are right
CASES: dict[str, tuple[str, list[str], dict[str, str], set[str]]] = {
    "plain": (train(TOO_LARGE), [], {}, {"reject"}),
    "venv": (
        f". {PYTHON.parent}/activate && python train.py {TOO_LARGE}",
        [],
        {},
        {"reject"},
    ),
    "torchrun": (
        f"{PYTHON} -m torch.distributed.run --standalone --nproc-per-node=1 train.py {TOO_LARGE}",
        [],
        {},
        {"reject"},
    ),
    "array": (train(TOO_LARGE), ["--array=1-4"], {}, {"reject"}),
    "heterogeneous": (train(TOO_LARGE), [":", "--gres=gpu:t4:1"], {}, {"uncertain", "reject"}),
    "fails": (
        train(FITS) + " --unknown; exit 3",
        [],
        {"train.py": "raise SystemExit(3)"},
        {"uncertain"},
    ),
    "hangs": ("sleep 1000", [], {}, {"uncertain"}),
    "writes": (
        f"{PYTHON} write.py; " + train(FITS),
        [],
        {"write.py": _WRITES, "keep.txt": "x"},
        {"admit", "uncertain"},
    ),
    "opens a socket": (
        f"set -e; {PYTHON} connect.py; " + train(TOO_LARGE),
        [],
        {"connect.py": _CONNECTS},
        {"reject"},
    ),
    "submits further jobs": (
        "set -e; sbatch --wrap=true; ssh localhost true; " + train(TOO_LARGE),
        [],
        {},
        {"reject"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_script_is_decided_rightly_and_leaves_nothing(rehearsing: Rehearsing, name: str) -> None:
    """Within its deadline; no file is changed, and no process or job is left."""
    commands, options, files, want = CASES[name]
    rehearsing.lab.set(**rehearsing.settings, rehearsal_seconds=60 if name == "hangs" else 600)
    num_before = rehearsing.num_jobs_of_nobody()
    began = time.monotonic()
    job = rehearsing.submit(commands, *options, files=files)
    before = rehearsing.contents()

    record = rehearsing.settle(job)

    seconds = time.monotonic() - began
    print(f"{name}: {record['decision']} after {seconds:.0f} s: {record.get('why')}")  # noqa: T201
    assert record["decision"] in want, record
    companions = [one for one in rehearsing.said if "rehearsed by job" in one]
    assert len(companions) == 1
    assert rehearsing.contents() == before
    rehearsing.lab.clear()
    assert rehearsing.processes() == []
    # itself, its companion, its second part
    assert rehearsing.num_jobs_of_nobody() - num_before <= (3 if ":" in options else 2)
