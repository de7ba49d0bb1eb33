"""Recordings of the real CUDACachingAllocator, replayed: every answer must match to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from memgate.allocator.conformance import compare, replay_vector
from memgate.allocator.replay import Core
from memgate.allocator.vectors import Vector, read_vectors
from tests.conftest import DATA, SHARED_TRUTH
from tests.cores import CORES, tell_all


def _read(path: Path) -> list[Vector]:
    with path.open("rb") as stream:
        return list(read_vectors(stream))


RECORDINGS = [
    pytest.param(vector, id=vector.id)
    for name in ("allocator_dev.jsonl.gz", "training_dev.jsonl.gz", "settings.jsonl.gz")
    for vector in _read(DATA / name)
]


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("vector", RECORDINGS)
def test_the_simulator_answers_as_the_real_allocator_did(vector: Vector, core: Core) -> None:
    """Peaks, ends, every change, every segment, every out-of-memory; exclusions: none."""
    comparison = compare(vector, replay_vector(vector, core=core))

    assert comparison.mismatches == ()
    assert comparison.not_compared == ()


@pytest.mark.parametrize("vector", RECORDINGS)
def test_the_cores_tell_the_same_of_a_recording(vector: Vector) -> None:
    """In what was recorded, and in all else."""
    first, *others = (tell_all(replay_vector(vector, core=core)) for core in CORES)

    assert others == [first] * len(others)


def test_nothing_was_lost_from_the_recordings() -> None:
    """495 synthetic sequences, 110 training runs, 70 of settings the others leave out."""
    assert len(RECORDINGS) == 495 + 110 + 70


@pytest.mark.parametrize("name", ["allocator_dev.jsonl.gz", "training_dev.jsonl.gz"])
def test_the_bundled_recordings_are_the_originals(name: str) -> None:
    """The copies in this repository are byte for byte those they were copied from."""
    original = SHARED_TRUTH / name
    if not original.exists():
        pytest.skip(f"the originals are not beside this checkout: {original}")

    assert (DATA / name).read_bytes() == original.read_bytes()
