"""The guard's programs: what they need of a machine, and what they cost."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from statistics import median

import pytest

from memgate_worker.guard.build import GuardFiles, guard_files
from memgate_worker.guard.guard import Choice, Protection, choose_protection
from tests.integration.guard.guarding import PYTHON, Place

OLDEST_GLIBC = (2, 28)
MAX_SLOWDOWN = 3.0
NUM_MEASUREMENTS = 5


def test_it_is_built_once(files: GuardFiles) -> None:
    """What is in the cache is used again."""
    before = files.library.stat().st_mtime_ns
    assert guard_files(files.library.parent.parent) == files
    assert files.library.stat().st_mtime_ns == before


def test_old_systems_have_all_it_needs(files: GuardFiles) -> None:
    """No symbol is younger than glibc 2.28, and no library but glibc's own is needed."""
    for path in (files.library, files.launcher):
        text = subprocess.check_output(["readelf", "-VdW", str(path)], text=True)
        versions = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", text)
        assert versions
        assert max((int(major), int(minor)) for major, minor in versions) <= OLDEST_GLIBC
        needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", text))
        assert needed <= {"libc.so.6", "libdl.so.2", "ld-linux-x86-64.so.2"}


def test_only_libcs_names_and_one_of_ours_are_exported(files: GuardFiles) -> None:
    """Nothing that a program could mistake for its own is visible."""
    text = subprocess.check_output(["readelf", "--dyn-syms", "-W", str(files.library)], text=True)
    rows = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    exported = {row[7] for row in rows if len(row) > 7 and row[6] != "UND"}
    assert "memgate_guard_hook_present" in exported
    assert not {name for name in exported if name.startswith(("guard_", "k_"))}


def test_what_does_not_work_is_told(files: GuardFiles) -> None:
    """Without any way there is no protection, and each refusal has its reason."""
    assert choose_protection(files, among=()) == Choice(protection=Protection.NONE, refusals=())
    broken = GuardFiles(library=files.library, launcher=Path("/bin/false"))
    choice = choose_protection(broken)
    assert choice.protection is Protection.NONE
    assert [text.split(":")[0] for text in choice.refusals] == ["overlay", "preload"]


def test_opening_files_stays_fast(place: Place) -> None:
    """10,000 small files, some of them private copies, cost at most three times the CPU time."""
    if place.way.as_other_user or place.way.protection is Protection.OVERLAY:
        pytest.skip("the kernel's work, or the same as another user")
    program = """
import time
open("notes.txt", "a").close()
before = time.process_time()
for _ in range(5000):
    for name in ("notes.txt", "/etc/passwd"):
        with open(name, "rb") as file:
            file.read()
print(time.process_time() - before)
"""
    ratios = []
    for _ in range(NUM_MEASUREMENTS):
        # by turns, so that what slows the machine down for a while slows both down
        plain = subprocess.check_output([PYTHON, "-c", program], cwd=place.directory.parent)
        ratios.append(float(place.python(program)) / float(plain))
    assert median(ratios) < MAX_SLOWDOWN
