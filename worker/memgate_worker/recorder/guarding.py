"""Puts the guard around a command: its changes of files are its own, and there is no real GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memgate.errors import InputError, NotProtectedError
from memgate_worker.guard.build import GuardBuildError, GuardFiles, guard_files
from memgate_worker.guard.changes import keep_changes
from memgate_worker.guard.guard import (
    PROBLEMS_NAME,
    Guard,
    Protection,
    choose_protection,
    make_scratch,
    prepare_scratch,
    remove_scratch,
)
from memgate_worker.recorder.environment import HOOK_DIR
from memgate_worker.recorder.listening import Heard
from memgate_worker.recorder.lookups import LOOKUPS, Lookup
from memgate_worker.recorder.question import CommandQuestion
from memgate_worker.runtimes.runtime import default_home
from memgate_worker.standins.finding import cache_home, standins_home


@contextmanager
def guarded(question: CommandQuestion, run_dir: Path) -> Iterator[Guard]:
    """Yield the guard of a command; what the job changed is removed in the end, unless it is kept.

    Raises:
        NotProtectedError: if files cannot be protected here, and the caller does not allow that.
        InputError: if the folder for its changes cannot be used.
    """
    files = _build()
    protection = _choose(files, question)
    scratch = make_scratch() if question.keep is None else _make_kept(question.keep)
    try:
        yield Guard(
            files=files,
            protection=protection,
            scratch=scratch,
            run_dir=run_dir,
            hook_dir=HOOK_DIR,
            standins_dirs=(standins_home(), default_home()),
            covers=question.covers,
        )
    finally:
        if question.keep is None:
            remove_scratch(scratch)
        else:
            keep_changes(scratch)


def read_reports(run_dir: Path, heard: Heard) -> None:
    """Take up what the guard's library says of processes: stopped ones, and looks for a GPU."""
    path = run_dir / PROBLEMS_NAME
    if not path.is_file():
        return
    for one in map(json.loads, path.read_text().splitlines()):
        if one["code"] == "PROGRAM_ENDED":
            heard.ended.append(one["program"] or "a program")
            continue
        if one["code"] in LOOKUPS:
            heard.lookups.append(Lookup.from_report(one))
            continue
        heard.problems.append(
            f"{' '.join(one['command'])}: this process loads torch and cannot be watched, since it"
            " ignores the variables of its environment (python -I, -E or -S, a static program that"
            " starts it); it was stopped at once"
        )


def _build() -> GuardFiles:
    try:
        return guard_files(cache_home() / "guard")
    except GuardBuildError as error:
        raise NotProtectedError(str(error)) from None


def _choose(files: GuardFiles, question: CommandQuestion) -> Protection:
    parent = question.keep.resolve().parent if question.keep is not None else None
    among = (Protection.OVERLAY,) if question.covers else (Protection.OVERLAY, Protection.PRELOAD)
    choice = choose_protection(files, parent, among)
    if choice.protection is Protection.NONE and not question.allows_writes:
        raise NotProtectedError(
            "the command was not run: this machine has no way to keep its changes of files apart"
            f" ({'; '.join(choice.refusals)}). --allow-writes runs it all the same, and then it"
            " writes and deletes what it would"
        )
    return choice.protection


def _make_kept(keep: Path) -> Path:
    try:
        keep.mkdir()
    except OSError as error:
        raise InputError(
            f"--keep {keep}: {error.strerror or error}; name a new folder, beside existing ones"
        ) from None
    kept = keep.resolve()  # the job may go elsewhere
    prepare_scratch(kept)
    return kept
