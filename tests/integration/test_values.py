"""What scripts read back from a GPU that is not there makes sense: they go their normal way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memgate.decision import Decision
from memgate.gpus import GpuTarget, find_gpu
from memgate.units import GIB, MIB
from memgate_worker.engines.traced import TracedJob
from memgate_worker.runtimes.runtime import Runtime, read_runtimes
from memgate_worker.verdicts import estimate_run, find_needs
from tests.data.value_scripts import DATA_SIZED, GUARDS, METRICS, PRELUDE, UNFILLED
from tests.integration.recording import record_script

RUNTIMES = read_runtimes()

#: what one process does with several scripts; a failure shows the line of the script
ONE_BY_ONE = """
    exec(compile(text, text, "exec"), dict(globals()))
    torch.autograd.set_detect_anomaly(False)
"""


@pytest.fixture(scope="module", params=["torch-2.6", "torch-2.14"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """Each runtime."""
    runtime = RUNTIMES[request.param]
    if not runtime.is_installed:
        pytest.skip(f"runtime {runtime.name} is not built: make runtime")
    return runtime


@pytest.fixture
def trace(runtime: Runtime, tmp_path: Path) -> Any:
    """Write scripts, run them one after the other to their ends and require three steps of each."""

    def run(*texts: str) -> TracedJob:
        path = tmp_path / "train.py"
        path.write_text(f"{PRELUDE}\nfor text in {texts!r}:{ONE_BY_ONE}")
        num_steps = 3 * len(texts)
        recorded = record_script(runtime, path, num_steps=num_steps + 1)
        assert (recorded.num_steps, recorded.why) == (num_steps, "end")
        return recorded.traced

    return run


def _codes(traced: TracedJob) -> set[str]:
    return {note.code for note in traced.notes}


def test_guards_let_a_healthy_job_pass(trace: Any) -> None:
    """Losses are positive and finite, gradients too, and no overflow is found."""
    traced = trace(*GUARDS.values())

    assert "SIZES_DEPEND_ON_DATA" not in _codes(traced)


def test_metrics_are_in_their_ranges(trace: Any) -> None:
    """Classes, counts, probabilities, histograms: what the host computes with them works."""
    trace(*METRICS.values())


@pytest.mark.parametrize("name", DATA_SIZED)
def test_sizes_follow_from_data_where_it_is_known(trace: Any, name: str) -> None:
    """Exact for what was uploaded; between none and all for what was computed."""
    traced = trace(DATA_SIZED[name])

    is_known = name in {
        "masks of labels that were uploaded",
        "an encoder that packs a padded batch for evaluation",
        "sequences of many lengths in nested tensors",
    }
    assert ("SIZES_DEPEND_ON_DATA" in _codes(traced)) == (not is_known)


def test_nothing_uninitialised_is_seen(trace: Any) -> None:
    """Memory that nobody wrote reads as plausible numbers, on the host and from the device."""
    trace(*UNFILLED.values())


SELECTING = """
features = torch.randn(1024, 1024, 256, device="cuda")
for _ in range(3):
    x, y, host_y, out, loss = forward()
    kept = features[features[..., 0] > out.mean()]
    del kept
    step(loss)
"""


def test_both_ends_are_told_and_the_larger_is_the_answer(trace: Any) -> None:
    """A mask may keep all or nothing, 1 GiB more or less; between them the data decide."""
    traced = trace(SELECTING)
    gpu = find_gpu("a100-40")

    def ask(free_bytes: int) -> Any:
        used = gpu.memory_bytes - free_bytes
        return estimate_run(traced, GpuTarget(gpu=gpu, already_used_bytes=used))

    (note,) = [note for note in traced.notes if note.code == "SIZES_DEPEND_ON_DATA"]
    reserved = find_needs(traced).ample.peak_reserved_bytes
    assert 2 * GIB < reserved < 2 * GIB + 200 * MIB
    assert "GiB with all of them found and 1" in note.message
    assert note.message.endswith("the answer is for the larger")
    assert traced.least_segments_bytes is not None
    assert GIB < traced.least_segments_bytes < GIB + 200 * MIB
    assert ask(4 * GIB).decision is Decision.ADMIT
    assert ask(GIB).decision is Decision.REJECT
    between = ask(2 * GIB)
    assert between.decision is Decision.UNCERTAIN
    assert between.reasons[0].code == "SIZES_DEPEND_ON_DATA"


def test_an_end_at_which_the_job_fails_is_named(trace: Any) -> None:
    """It divides by what a mask found: the answer is for the other end."""
    script = """
for _ in range(3):
    x, y, host_y, out, loss = forward()
    share = 1 / out[out > out.mean()].numel()
    step(loss)
"""
    (note,) = [note for note in trace(script).notes if note.code == "SIZES_DEPEND_ON_DATA"]

    assert "with none it fails" in note.message
    assert "ZeroDivisionError" in note.message
