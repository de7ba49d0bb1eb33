"""The native core: there where a compiler is, built of these sources, and never another answer."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memgate.allocator import native_core
from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.config import AllocatorConfig
from memgate.allocator.device import AddressPolicy
from memgate.allocator.native_core import load_core
from memgate.allocator.replay import Core, OnOom, Replayer, replay
from memgate.errors import InputError, TimelineError
from memgate.timeline import Alloc, EmptyCache, Free, RecordStream, Timeline
from tests.builders import AMPLE, make_timeline, mib
from tests.cores import CORES, replay_on_both, tell_all
from tests.strategies import capacities, settings_strings, whole_timelines

SOURCES = Path(native_core.__file__).parent / "native"

needs_native_core = pytest.mark.skipif(load_core() is None, reason="there is no C++ compiler here")


def test_it_is_there_where_a_compiler_is() -> None:
    """Otherwise half of these tests would compare nothing."""
    if shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler here")

    assert load_core() is not None, "make install builds it"
    assert CORES == (Core.PYTHON, Core.NATIVE)


@given(st.data(), settings_strings, capacities)
def test_both_cores_tell_the_same(data: st.DataObject, conf: str, capacity: int) -> None:
    """For everything that a timeline can have, on every device: counters, curves, segments, all."""
    config = parse_alloc_conf(conf)
    timeline = data.draw(whole_timelines(is_expandable=config.expandable_segments))
    context = data.draw(st.sampled_from([0, mib(7)]))

    replay_on_both(
        timeline,
        config,
        capacity,
        context_bytes=context,
        on_oom=data.draw(st.sampled_from(OnOom)),
        address_policy=data.draw(st.sampled_from(AddressPolicy)),
    )
    probes = {Replayer(timeline, core=core).probe(config, capacity) for core in CORES}

    assert len(probes) == 1


@given(st.data(), settings_strings, capacities)
def test_a_replay_knows_where_it_would_go_another_way(
    data: st.DataObject, conf: str, capacity: int
) -> None:
    """At every capacity of its window it goes the same way: at both ends, and between."""
    config = parse_alloc_conf(conf)
    timeline = data.draw(whole_timelines(is_expandable=config.expandable_segments))
    run = replay(timeline, config, capacity)
    assert run.lowest_bytes <= capacity < run.below_bytes
    top = min(run.below_bytes - 1, 1 << 44)
    between = data.draw(st.integers(run.lowest_bytes, top))

    for other in (run.lowest_bytes, between, top):
        again = replay(timeline, config, other)
        assert again.segment_events == run.segment_events
        assert [at for at, _ in again.ooms] == [at for at, _ in run.ooms]
        assert again.lowest_bytes <= other < again.below_bytes
        # how a request fails that exceeds all addresses of the device may differ: it fails
        if not run.ooms:
            assert (again.lowest_bytes, again.below_bytes) == (run.lowest_bytes, run.below_bytes)


@needs_native_core
@pytest.mark.parametrize(
    ("events", "capacity"),
    [
        ((Alloc(1 << 70, 512), Free(1 << 70)), AMPLE),
        ((Alloc((1 << 63) + 1, 512),), AMPLE),
        ((Alloc(1, 512), Alloc(2, mib(30))), 1 << 61),
        (tuple(Alloc(number, (1 << 60) - 1, number) for number in range(9)), 1 << 60),
    ],
    ids=["id of 70 bits", "id of 64 bits", "a device of exabytes", "addresses"],
)
def test_what_is_beyond_64_bits_is_left_to_the_python_core(
    events: tuple[Alloc | Free, ...], capacity: int
) -> None:
    """It counts in Python's own numbers, and the answer says which core it is of."""
    config = parse_alloc_conf("expandable_segments:True")
    timeline = make_timeline(*events)

    run = replay(timeline, config, capacity, on_oom=OnOom.CONTINUE)
    probe = Replayer(timeline).probe(config, capacity)

    assert run.core is Core.PYTHON
    wanted = replay(timeline, config, capacity, on_oom=OnOom.CONTINUE, core=Core.PYTHON)
    assert tell_all(run) == tell_all(wanted)
    assert probe == Replayer(timeline, core=Core.PYTHON).probe(config, capacity)


@needs_native_core
def test_the_native_core_is_chosen_where_it_is() -> None:
    """The other one is asked for by name."""
    timeline = make_timeline()

    assert replay(timeline, AllocatorConfig(), AMPLE).core is Core.NATIVE
    assert replay(timeline, AllocatorConfig(), AMPLE, core=Core.PYTHON).core is Core.PYTHON


@pytest.fixture
def not_built(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if there had been no compiler."""

    def fail(name: str) -> None:
        raise ImportError(name)

    load_core.cache_clear()
    monkeypatch.setattr(native_core, "import_module", fail)
    yield
    load_core.cache_clear()


@pytest.mark.usefixtures("not_built")
def test_without_it_the_python_core_answers() -> None:
    """And who insists is told what is missing."""
    assert replay(make_timeline(), AllocatorConfig(), AMPLE).core is Core.PYTHON
    with pytest.raises(InputError, match="was not built"):
        replay(make_timeline(), AllocatorConfig(), AMPLE, core=Core.NATIVE)


def test_one_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls may mean something else by now."""
    load_core.cache_clear()
    monkeypatch.setattr(native_core, "import_module", lambda _: SimpleNamespace(PROTOCOL=0))

    assert load_core() is None
    load_core.cache_clear()


def test_other_allocators_have_no_native_core() -> None:
    """They are classes in Python."""
    run = replay(make_timeline(), AllocatorConfig(), AMPLE, allocator_name="direct")

    assert run.core is Core.PYTHON
    with pytest.raises(InputError, match="'direct'"):
        replay(make_timeline(), AllocatorConfig(), AMPLE, allocator_name="direct", core=Core.NATIVE)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ((Alloc(7, 1), Alloc(7, 1)), "event 1, Alloc(block_id=7, size_bytes=1, stream=0): id 7 is"),
        ((Free(7),), "event 0, Free(block_id=7): id 7 is not allocated"),
        ((Alloc(7, 1), Free(7), RecordStream(7, 1)), "event 2, RecordStream(block_id=7"),
    ],
)
def test_contradictions_are_told_in_the_same_words(
    events: tuple[Alloc | Free | RecordStream, ...], message: str
) -> None:
    """By both cores, by replays and probes."""
    timeline = Timeline(events=events)

    with pytest.raises(TimelineError) as told:
        replay_on_both(timeline, AllocatorConfig(), AMPLE)

    assert told.value.message.startswith(message)
    for core in CORES:
        with pytest.raises(TimelineError):
            Replayer(timeline, core=core).probe(AllocatorConfig(), AMPLE)


@needs_native_core
@pytest.mark.parametrize(
    "packed", [b"", b"\x90", b"\x94", b"\x94\x91\x92\xa4free", b"\x94\x91\x92\xa3new\x01", b"\xc0"]
)
def test_a_broken_buffer_is_refused(packed: bytes) -> None:
    """Nobody sends one, and it is not read beyond its end."""
    core = load_core()
    assert core is not None

    with pytest.raises(ValueError, match=r"."):
        core.pack(packed)


@needs_native_core
def test_it_was_built_of_these_sources() -> None:
    """After a change: make install."""
    core = load_core()
    assert core is not None
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())

    assert digest.hexdigest() == core.SOURCES, "make install builds it"


def test_of_two_blocks_that_can_grow_the_one_in_a_gap_is_taken() -> None:
    """GIVEN a free block in a gap and one at a segment's end, THEN the gap's is the tighter fit."""
    events = (
        Alloc(0, mib(60), 0),
        Alloc(1, mib(60), 0),
        Free(0),
        EmptyCache(),
        Alloc(2, mib(20), 0),
        Free(1),
        Free(2),
        Alloc(3, mib(12), 0),
        Alloc(4, mib(60), 0),
    )

    run = replay_on_both(
        Timeline(events=events), parse_alloc_conf("expandable_segments:True"), AMPLE
    )

    # the end's was left for the last request: no page more was needed
    assert run.reserved_changes[-1] == (4, mib(80))
