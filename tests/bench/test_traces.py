"""The cost of a trace grows with its events, and it is read in a few times its size."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from memgate.blocks import BlockProblem, pair_blocks
from memgate.links import LinkProblem, link_blocks
from memgate.trace import read_trace
from tests.bench import traces
from tests.builders import TINY_TRACES, read_tiny_trace

MB = 1_000_000


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of 4 MB."""
    path = tmp_path_factory.mktemp("traces") / "small.json"
    path.write_bytes(traces.repeat_trace(4 * MB))
    return path


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of 16 MB."""
    path = tmp_path_factory.mktemp("traces") / "large.json"
    path.write_bytes(traces.repeat_trace(16 * MB))
    return path


@pytest.mark.parametrize("name", TINY_TRACES)
def test_a_repeated_trace_is_a_longer_job(name: str) -> None:
    """Blocks are paired and calls are tied as in the one that is repeated."""
    once = read_tiny_trace(name)
    trace = read_trace(io.BytesIO(traces.repeat_trace(3 * MB, name)))

    short, linked = (link_blocks(pair_blocks(one), one) for one in (once, trace))

    times, rest = divmod(len(trace.ops), len(once.ops))
    assert times >= 2
    assert rest == 0
    assert linked.diagnostics[LinkProblem.NO_FORWARD] == 0
    assert BlockProblem.FREE_NOT_SEEN not in linked.diagnostics
    steps = sum(note.name.startswith("Optimizer.step#") for note in once.annotations)
    assert len(linked.calls) == len(short.calls) * times
    assert linked.calls[-1].iteration == short.calls[-1].iteration + steps * (times - 1)


def test_four_times_the_events_do_not_double_the_cost_of_one(small: Path, large: Path) -> None:
    """A ratio within one run: linear growth would be 1, quadratic 4."""
    pairs = [(traces.measure(small), traces.measure(large)) for _ in range(5)]
    growth = {
        stage: min(
            (more.seconds[stage] / more.num_events) / (less.seconds[stage] / less.num_events)
            for less, more in pairs
        )
        for stage in traces.STAGES
    }

    assert max(growth.values()) < 2.0, growth


def test_an_upload_is_judged_within_its_memory_limit(large: Path) -> None:
    """Three times the file, and 150 MB."""
    cost = traces.measure_upload(large)
    assert cost.peak_bytes < 3 * large.stat().st_size + 150 * MB


def test_the_bench_prints_a_row_a_trace(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a file that is given, or of traces that it makes."""
    traces.main([str(small), "--repeats", "1"])
    traces.main(["--megabytes", "1", "--repeats", "1"])

    out = capsys.readouterr().out
    assert "small.json" in out
    assert "tiny-torch-2.14, repeated" in out
