"""The guard, built once, and a directory of files behind each way to protect it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from memgate_worker.guard.build import GuardFiles, guard_files
from memgate_worker.guard.guard import Protection, choose_protection
from tests.integration.guard.guarding import WAYS, Place, make_place, take_snapshot


@pytest.fixture(scope="session")
def files() -> Iterator[GuardFiles]:
    """The guard's programs, where any user can read them."""
    with tempfile.TemporaryDirectory(prefix="memgate-guard-") as name:
        Path(name).chmod(0o755)
        built = guard_files(Path(name))
        built.library.parent.chmod(0o755)
        yield built


def _fill(directory: Path) -> None:
    (directory / "data" / "deep" / "deeper").mkdir(parents=True)
    (directory / "empty").mkdir()
    (directory / "notes.txt").write_text("one\ntwo\nthree\n")
    (directory / "data" / "a.bin").write_bytes(bytes(range(256)) * 64)
    (directory / "data" / "deep" / "b.txt").write_text("deep\n")
    (directory / "data" / "deep" / "deeper" / "c.txt").write_text("deeper\n")
    (directory / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (directory / "run.sh").chmod(0o755)
    (directory / "locked").write_text("read only\n")
    (directory / "locked").chmod(0o444)
    (directory / "link").symlink_to("notes.txt")
    (directory / "links").symlink_to("data/deep")
    (directory / "nowhere").symlink_to("missing")
    for step in (100, 200, 300):
        checkpoint = directory / "out" / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "model.bin").write_bytes(os.urandom(50_000))
        (checkpoint / "state.json").write_text(f'{{"step": {step}}}')
    for path in [directory, *directory.rglob("*")]:
        os.utime(path, ns=(10**18, 10**18 + 123_456_789), follow_symlinks=False)


@cache
def _is_possible(files: GuardFiles, protection: Protection) -> bool:
    return choose_protection(files, among=(protection,)).protection is protection


#: the others differ in rights and in what the kernel has; ``make test-slow`` tries them, too
_USUAL = ("overlay", "preload")
_PARAMS = [way if way in _USUAL else pytest.param(way, marks=pytest.mark.slow) for way in WAYS]


@pytest.fixture(params=_PARAMS)
def place(request: pytest.FixtureRequest, files: GuardFiles) -> Iterator[Place]:
    """A directory of real files; after each test all of it is as it was."""
    way = WAYS[request.param]
    if way.as_other_user and os.geteuid() != 0:
        pytest.skip("the test's own user is without rights already")
    if not _is_possible(files, way.protection):
        pytest.skip(f"this machine has no {way.protection.value}")
    with make_place(way, files) as place:
        _fill(place.directory)
        place.own()
        before = take_snapshot(place.directory)
        yield place
        assert take_snapshot(place.directory) == before
