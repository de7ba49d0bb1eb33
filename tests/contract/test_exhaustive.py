"""The list of tests that ``make test`` leaves out is about tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import EXHAUSTIVE

ROOT = Path(__file__).parents[2]


def test_every_line_names_a_test() -> None:
    """A test that is renamed would be part of every run again, and nobody would notice."""
    unknown = []
    for line in EXHAUSTIVE:
        module, *_, name = line.split("::")
        function = re.escape(name.partition("[")[0])
        if not re.search(rf"^ *def {function}\(", (ROOT / module).read_text(), re.MULTILINE):
            unknown.append(line)

    assert unknown == []
