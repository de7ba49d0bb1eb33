"""Random file operations: behind the guard a program sees exactly what it sees without."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.guard.guarding import PYTHON, Place

PROGRAM = (Path(__file__).parent / "operations.py").read_text()
NUM_OPERATIONS = 300


def _compare(place: Place, seed: int) -> None:
    arguments = [PYTHON, "-c", PROGRAM, str(seed), str(NUM_OPERATIONS)]
    twin = place.directory.parent / "twin"
    shutil.copytree(place.directory, twin, symlinks=True)
    if place.way.user is not None:
        for path in [twin, *twin.rglob("*")]:
            os.chown(path, place.way.user, place.way.user, follow_symlinks=False)
    plain = subprocess.run(
        arguments,
        cwd=twin,
        capture_output=True,
        text=True,
        check=True,
        user=place.way.user,
        group=place.way.user,
    )
    guarded = place.run(arguments)
    assert guarded.returncode == 0, guarded.stderr
    assert guarded.stdout.splitlines() == plain.stdout.splitlines()


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_give_the_same(place: Place, seed: int) -> None:
    """Results, errors, and all that is there in the end are those of an unguarded run."""
    _compare(place, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_operations_give_the_same(place: Place, seed: int) -> None:
    """The same, more often."""
    _compare(place, seed)
