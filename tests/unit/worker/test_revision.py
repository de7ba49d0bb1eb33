"""Nobody changes what an engine does and forgets that older runs are stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memgate_worker.engines.revision import ENGINE_REVISION
from tests.engine_sources import RECORDED, digest_source, digest_sources


def test_a_changed_engine_has_been_considered() -> None:
    """A source that decides events has changed only together with a decision on the revision."""
    recorded = json.loads(RECORDED.read_text())
    now, before = digest_sources(), recorded["sources"]

    changed = sorted(name for name in now | before if now.get(name) != before.get(name))

    assert (changed, recorded["revision"]) == ([], ENGINE_REVISION), (
        "these sources decide which events a job has, and stored runs were made by older ones."
        " If any job's events, labels, notes or doubts may now differ, raise ENGINE_REVISION in"
        " worker/memgate_worker/engines/revision.py. In either case then run:"
        " python -m tests.engine_sources"
    )


def test_all_parts_of_the_engines_are_watched() -> None:
    """The phantom with its native code, the profile engine with its stages, the training loop."""
    watched = digest_sources()

    assert {
        "worker/memgate_worker/engines/phantom/native/cudnn.cpp",
        "worker/memgate_worker/engines/profile/engine.py",
        "worker/memgate_worker/jobs/loop.py",
        "worker/memgate_worker/jobs/public_models/gpt2.json",
        "memgate/orchestration.py",
    } <= watched.keys()


@pytest.mark.parametrize(
    ("suffix", "before", "after", "is_same"),
    [
        (".py", 'def f():\n    """A."""\n    return 1', "def f(): return 1  # one", True),
        (".py", 'raise Error(f"bad {x}")', 'raise Error(f"wrong: {x}")', True),
        (".py", "x = 1", "x = 2", False),
        (".py", 'x = "a"', 'x = "b"', False),
        (".cpp", "int f() { return 1; }", "// one\nint f() {\n  return 1; }", True),
        (".cpp", "int f() { return 1; }", "int f() { return 2; }", False),
        (".json", "{}", "[]", False),
    ],
)
def test_only_what_a_source_does_counts(
    tmp_path: Path, suffix: str, before: str, after: str, is_same: bool
) -> None:
    """Comments, docstrings, formatting and the text of errors change no event."""
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    first.write_text(before)
    second.write_text(after)

    assert (digest_source(first) == digest_source(second)) is is_same
