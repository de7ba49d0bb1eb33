"""Traces that something went wrong with: an answer or an InputError, never anything else."""

from __future__ import annotations

import copy
import gzip
import io
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from memgate.errors import InputError
from memgate.pipeline import analyze
from memgate.plan import DeviceTraits
from memgate.timeline import Timeline
from memgate.trace import read_trace
from tests.builders import TINY_TRACES
from tests.conftest import DATA

_DOCUMENT = json.loads(
    gzip.decompress((DATA / "traces" / f"{TINY_TRACES[0]}.json.gz").read_bytes())
)
#: an iteration of it: mutations are found sooner in less
_DOCUMENT["traceEvents"] = _DOCUMENT["traceEvents"][:1500] + _DOCUMENT["traceEvents"][-900:]

_ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.lists(st.integers(-3, 3), max_size=3),
    st.just([[[[[[]]]]]]),
)
_FIELDS = ("ts", "dur", "tid", "name", "cat", "args", "ph")
_ARGS = ("Addr", "Bytes", "Sequence number", "Fwd thread id", "Input Dims", "Input type")


@st.composite
def _mutations(draw: st.DrawFn) -> list[tuple[int, str, Any]]:
    positions = st.integers(0, len(_DOCUMENT["traceEvents"]) - 1)
    names = st.sampled_from([*_FIELDS, *(f"args.{name}" for name in _ARGS)])
    values = st.one_of(st.just("drop"), _ODD_VALUES)
    return draw(st.lists(st.tuples(positions, names, values), min_size=1, max_size=30))


def _mutate(events: list[dict[str, Any]], position: int, name: str, value: Any) -> None:
    outer, _, inner = name.partition(".")
    event = events[position] = copy.deepcopy(events[position])
    target = event.get(outer) if inner else event
    if not isinstance(target, dict):
        return
    if value == "drop":
        target.pop(inner or outer, None)
    else:
        target[inner or outer] = value


@given(mutations=_mutations(), swapped=st.integers(0, 2000))
@settings(max_examples=100)
def test_a_broken_trace_is_an_input_error_or_an_answer(
    mutations: list[tuple[int, str, Any]], swapped: int
) -> None:
    """Dropped fields, wrong types, huge numbers, times that run backwards."""
    events = list(_DOCUMENT["traceEvents"])
    events[swapped], events[-1] = events[-1], events[swapped]
    for mutation in mutations:
        _mutate(events, *mutation)
    data = json.dumps(_DOCUMENT | {"traceEvents": events}).encode()

    try:
        trace = read_trace(io.BytesIO(data))
        timeline = analyze(trace, DeviceTraits(compute_capability=(8, 0))).timeline
    except InputError:
        return

    assert isinstance(timeline, Timeline)
