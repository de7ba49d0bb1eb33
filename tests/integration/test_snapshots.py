"""Memory snapshots that real PyTorch writes, replayed: peaks to the byte, and the right doubts."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.gpus import GpuTarget, find_gpu, parse_gpu
from memgate.snapshots.reading import DeviceHistory, read_histories, read_snapshot
from memgate.units import GIB
from memgate_worker.engines.host_client import host_environment
from memgate_worker.engines.phantom.engine import describe_device
from memgate_worker.runtimes.runtime import Runtime, read_runtimes
from memgate_worker.snapshots import estimate_snapshot
from tests.conftest import DATA

ROOT = Path(__file__).parents[2]
SCRIPT = DATA / "scripts" / "snapshot_jobs.py"
CAPACITY = 8 * GIB

#: the stand-ins must be there before torch is
RUN = """
import os, runpy, sys
from pathlib import Path
from memgate_worker.hook.memgate_hook.phantom import Phantom
Phantom(Path(os.environ["MEMGATE_PHANTOM_LIBRARIES"]))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0])
"""

#: what each job's snapshot is doubted for
JOBS: dict[str, list[str]] = {
    "adam": [],
    "sgd": [],
    "convolutions": [],
    "transformer": [],
    "empty_cache": [],
    "streams": [],
    "private_pool": [],
    "expandable": [],
    "settings": [],
    "pressure": [],
    "late": [],
    "late_expandable": [],
    "late_without_stacks": ["HISTORY_WRAPPED"],
    "wrapped": ["HISTORY_WRAPPED"],
    "wrapped_expandable": ["HISTORY_WRAPPED"],
    "one_step": ["NO_REPEATED_STEP"],
    "no_history": ["NO_HISTORY"],
    "out_of_memory": ["ENDED_IN_OOM"],
    "survived": ["ENDED_IN_OOM"],
}

#: of ``torch.cuda.memory_stats()``
PEAKS = [
    f"{counter}.all.peak"
    for counter in (
        *("reserved_bytes", "allocated_bytes", "active_bytes", "requested_bytes"),
        "inactive_split_bytes",
    )
]


@cache
def _run_all(runtime: Runtime, folder: Path) -> Path:
    """Have a runtime write the snapshots of all jobs."""
    device = describe_device(find_gpu("rtx-4060")) | {"MEMGATE_PHANTOM_TOTAL_BYTES": str(CAPACITY)}
    more = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'worker'}"}
    ran = subprocess.run(
        [runtime.python, "-c", RUN, SCRIPT, folder, *JOBS],
        env=host_environment(runtime) | device | more,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture(params=["torch-2.14", "torch-2.6"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the snapshots of a runtime are."""
    runtime = read_runtimes()[request.param]
    if not runtime.is_installed:
        pytest.skip(f"runtime {request.param} is not built: make runtime")
    folder = tmp_path_factory.getbasetemp() / f"snapshots-{request.param}"
    folder.mkdir(exist_ok=True)
    return _run_all(runtime, folder)


def _read(path: Path) -> DeviceHistory:
    with path.open("rb") as stream:
        (history,) = read_histories(read_snapshot(stream))
    return history


@pytest.mark.parametrize("job", JOBS)
def test_a_replayed_snapshot_has_torchs_own_peaks(written: Path, job: str) -> None:
    """Five counters, to the byte; without a history the reserved memory only."""
    history = _read(written / f"{job}.pickle")
    stats = json.loads((written / f"{job}.json").read_text())
    peaks = PEAKS if job != "no_history" else PEAKS[:1]
    total = _read_total(written)

    run = replay(history.timeline, parse_alloc_conf(history.alloc_conf), total)

    assert [doubt.code for doubt in history.doubts] == JOBS[job]
    replayed = run.stats.memory_stats()
    assert {name: replayed[name] for name in peaks} == {name: stats[name] for name in peaks}
    assert (run.oom is not None) == (job == "out_of_memory")


def _read_total(written: Path) -> int:
    """Return what the device had for PyTorch: reserved and left when a request failed."""
    with (written / "out_of_memory.pickle").open("rb") as stream:
        (device,) = read_snapshot(stream).devices
    left = [event.address for event in device.events if event.action == "oom"]
    return sum(segment.size_bytes for segment in device.segments) + left[-1]


@pytest.mark.parametrize(
    ("job", "gpu", "want"),
    [
        ("adam", "rtx-4060", "admit"),
        ("late", "rtx-4060", "admit"),
        ("wrapped", "h200", "uncertain"),
        ("no_history", "h200", "uncertain"),
        ("out_of_memory", "rtx-4060", "reject"),
        ("out_of_memory", "h200", "uncertain"),
        ("survived", "rtx-4060", "uncertain"),
    ],
)
def test_the_verdict_keeps_to_what_the_file_shows(
    written: Path, job: str, gpu: str, want: str
) -> None:
    """A doubt is never an admission, on however large a GPU."""
    target: GpuTarget = parse_gpu(gpu)
    with (written / f"{job}.pickle").open("rb") as stream:
        said = estimate_snapshot(stream, target).estimate

    assert (said.decision, said.engine) == (want, "snapshot")
