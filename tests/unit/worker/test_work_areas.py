"""Sizes of work areas that were assumed are told, in bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from memgate_worker.engines.messages import WorkAreas
from memgate_worker.engines.phantom.work_areas import doubt_work_areas, note_work_areas
from memgate_worker.standins.cufft import find_cufft


def test_a_job_without_such_libraries_is_not_doubted() -> None:
    """Most jobs."""
    assert [*doubt_work_areas(WorkAreas()), *note_work_areas(WorkAreas())] == []


@pytest.mark.parametrize(
    ("found", "want", "want_size"),
    [
        (WorkAreas(fft_assumed=3 << 20), "FFT_WORK_AREAS", "3.00 MiB (3145728 bytes)"),
        (WorkAreas(linalg_assumed=1000), "LINALG_WORK_AREAS", "assumed to be 1000 bytes,"),
    ],
)
def test_what_was_assumed_is_doubted_with_its_size(
    found: WorkAreas, want: str, want_size: str
) -> None:
    """Whoever reads it can tell whether it matters."""
    (doubt,) = doubt_work_areas(found)

    assert doubt.code == want
    assert want_size in doubt.message
    assert list(note_work_areas(found)) == []


def test_what_cufft_itself_says_is_not_doubted() -> None:
    """It is noted, with what cuFFT takes besides."""
    found = WorkAreas(fft_asked=0, cufft_itself=2 << 20)

    (note,) = note_work_areas(found)

    assert list(doubt_work_areas(found)) == []
    assert note.code == "CUFFT_ASKED"
    assert "the largest 0 bytes; the 2.00 MiB (2097152 bytes)" in note.message


@pytest.mark.parametrize("folder", ["cufft", "cu13"])
def test_the_cufft_that_torch_wants_is_found(tmp_path: Path, folder: str) -> None:
    """By its name, in the package that brings it; not another version."""
    standins = tmp_path / "standins"
    library, other = (tmp_path / "nvidia" / folder / "lib" / f"libcufft.so.{n}" for n in (11, 10))
    library.parent.mkdir(parents=True)
    standins.mkdir()
    (standins / "libcufft.so.11").touch()
    other.touch()

    assert find_cufft([tmp_path], standins) is None
    library.touch()
    assert find_cufft([tmp_path / "nowhere", tmp_path], standins) == library
