"""The guard's command line and environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from memgate_worker.guard import build
from memgate_worker.guard.build import GuardBuildError, GuardFiles, guard_files
from memgate_worker.guard.guard import (
    Guard,
    Protection,
    make_scratch,
    remove_scratch,
)

FILES = GuardFiles(library=Path("/g/lib.so"), launcher=Path("/g/launcher"))


def _guard(**changes: object) -> Guard:
    settings: dict[str, object] = {
        "files": FILES,
        "protection": Protection.PRELOAD,
        "scratch": Path("/scratch"),
        **changes,
    }
    return Guard(**settings)  # type: ignore[arg-type]


def test_the_command_comes_after_the_launchers_own_words() -> None:
    """The launcher is told the way, the scratch directory and what stays writable, each once."""
    guard = _guard(run_dir=Path("/run-1"), writable=(Path("/run-1"), Path("/more")))
    want = "/g/launcher --preload --scratch /scratch --writable /run-1 --writable /more -- a --b"
    assert guard.command(["a", "--b"]) == want.split()


def test_landlock_can_be_left_out() -> None:
    """For tests of how it is on a kernel without Landlock."""
    assert "--without-landlock" in _guard(use_landlock=False).command(["a"])


def test_ours_come_before_a_users_own() -> None:
    """LD_PRELOAD and PYTHONPATH of the user are kept, behind ours; the rest is untouched."""
    guard = _guard(preload=(Path("/g/more.so"),), hook_dir=Path("/hook"))
    user = {"LD_PRELOAD": "/mine.so", "PYTHONPATH": "/mine", "OTHER": "x"}
    environment = guard.environment(user)
    assert environment["LD_PRELOAD"] == "/g/lib.so:/g/more.so:/mine.so"
    assert environment["PYTHONPATH"] == "/hook:/mine"
    assert environment["OTHER"] == "x"
    assert environment["MEMGATE_GUARD_PRELOAD"] == "/g/lib.so:/g/more.so"


def test_files_are_redirected_by_the_library_only_without_an_overlay() -> None:
    """Only the preload way tells the library where to put copies."""
    for protection in Protection:
        environment = _guard(protection=protection).environment({})
        assert ("MEMGATE_GUARD_SCRATCH" in environment) == (protection is Protection.PRELOAD)
        assert environment["LD_PRELOAD"] == "/g/lib.so"
        assert "PYTHONPATH" not in environment


def test_a_scratch_directory_is_removed_whatever_its_modes(tmp_path: Path) -> None:
    """Directories that a job closed do not stay behind."""
    scratch = make_scratch(tmp_path)
    closed = scratch / "files" / "closed"
    closed.mkdir()
    (closed / "file").touch()
    closed.chmod(0)
    remove_scratch(scratch)
    assert list(tmp_path.iterdir()) == []


def test_without_a_compiler_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the compilers that would do."""
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(GuardBuildError, match=r"no C compiler.*no-such-compiler; install one"):
        guard_files(tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """One that has the guard may be read-only; one that has not must be writable."""
    (tmp_path / "file").touch()
    with pytest.raises(GuardBuildError, match=r"not in the cache.*MEMGATE_CACHE_DIR"):
        guard_files(tmp_path / "file")


def test_a_failing_compiler_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the compiler says is in the message."""
    monkeypatch.setattr(build, "COMPILERS", ("false",))
    with pytest.raises(GuardBuildError, match="could not build"):
        guard_files(tmp_path)
