"""Which sandbox is used, what is refused without it, and what its processes are told."""

from __future__ import annotations

import pytest

from memgate.errors import Fault, SandboxError
from memgate_worker.engines.host_client import host_environment
from memgate_worker.limits import RunLimits
from memgate_worker.queue.announcements import REFUSED, Announcement, Serving
from memgate_worker.runtimes.runtime import read_runtimes
from memgate_worker.sandbox.cell import Cell
from memgate_worker.sandbox.level import Level
from memgate_worker.sandbox.policy import SandboxPolicy, choose


def test_levels_are_ordered() -> None:
    """Each reaches itself and those below."""
    assert Level.ROOT.reaches(Level.NONE)
    assert Level.LANDLOCK.reaches(Level.LANDLOCK)
    assert not Level.LANDLOCK.reaches(Level.NAMESPACES)


def test_below_the_least_level_nothing_is_run() -> None:
    """The operator's fault, by a code of its own, and both settings are named."""
    policy = SandboxPolicy(use=Level.NONE, least=Level.LANDLOCK)

    with pytest.raises(SandboxError, match=r"'landlock' \(MEMGATE_SANDBOX_LEVEL\).*'none'") as told:
        choose(policy)

    assert (told.value.code, told.value.fault) == ("SANDBOX_TOO_WEAK", Fault.OPERATOR)


def test_a_level_without_a_demand_is_used() -> None:
    """No sandbox at all works everywhere."""
    assert choose(SandboxPolicy(use=Level.NONE)).level is Level.NONE


def test_a_plan_crosses_as_it_is() -> None:
    """It is text on the way to the process that is kept."""
    cell = Cell(level=Level.ROOT, readable=("/usr",), first_uid=1 << 30, cgroups=(3, 4))

    assert Cell.from_json(cell.to_json()) == cell


def test_jobs_are_users_of_their_own_until_they_begin_again() -> None:
    """None of them is the process that is kept, which is the first."""
    cell = Cell(level=Level.ROOT, first_uid=1 << 30, num_uids=1010)

    users = [cell.uid_of(number) for number in range(11)]

    assert (len(set(users[:10])), users[10]) == (10, users[0])
    assert 0 not in users
    assert Cell(level=Level.NAMESPACES).uid_of(3) is None


def test_engines_see_none_of_the_workers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses and keys stay with the worker."""
    monkeypatch.setenv("MEMGATE_REDIS_URL", "redis://:secret@store")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    seen = host_environment(read_runtimes()["torch-2.14"])

    assert "secret" not in str(seen)


def test_workers_say_how_far_jobs_are_kept_apart() -> None:
    """Each level once; one of an older version says nothing."""
    said = [
        Announcement(engines=(), default_runtime="", limits=RunLimits(), sandbox=level)
        for level in ("root", "", "root", REFUSED)
    ]

    assert Serving(said).sandboxes == ("root", REFUSED)
