"""A runtime that is in use is neither removed nor replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memgate.errors import OperatorError
from memgate_worker.runtimes.install import remove
from memgate_worker.runtimes.locks import Use, unused, using
from memgate_worker.runtimes.runtime import Runtime, read_runtimes
from tests.runtimes import pretend_installed

NAME = "torch-2.14"


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    """Make one that looks installed."""
    made = read_runtimes(tmp_path)[NAME]
    pretend_installed(made)
    return made


def test_what_is_in_use_is_not_removed(runtime: Runtime) -> None:
    """The message names the process; afterwards it can be removed."""
    first, second = Use(runtime), Use(runtime)
    first.close()
    first.close()
    want = rf"'torch-2\.14' was not removed: it is in use by process {os.getpid()}; stop what"
    with pytest.raises(OperatorError, match=want):
        remove(runtime)
    assert runtime.is_installed
    second.close()

    assert remove(runtime) > 0
    assert not runtime.home.exists()


def test_several_may_use_it_at_once(runtime: Runtime) -> None:
    """And somebody may want to know whether anybody does."""
    with using(runtime), using(runtime), pytest.raises(OperatorError), unused(runtime, "x"):
        pass
    with unused(runtime, "was not changed"):
        pass


def test_a_folder_that_cannot_be_written_has_no_locks(runtime: Runtime) -> None:
    """A runtime in a read-only image is used all the same."""
    nowhere = read_runtimes(runtime.home / "missing")[NAME]

    with using(nowhere), unused(nowhere, "was not removed"):
        pass
