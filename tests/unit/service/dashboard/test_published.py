"""The published figures on the page are those of docs/accuracy.md."""

from __future__ import annotations

import re
from pathlib import Path

from memgate_service.dashboard.published import PUBLISHED

ROOT = Path(__file__).parents[4]


def test_the_page_shows_what_the_document_says() -> None:
    """Every figure of every estimator, in the first table of docs/accuracy.md."""
    text = (ROOT / "docs" / "accuracy.md").read_text()
    table = text.partition("| estimator |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    documented = {re.sub(r"\*\*| \(.*\)", "", row[0]): row[1:] for row in rows[2:]}

    assert set(documented) == {one.name for one in PUBLISHED}
    for one in PUBLISHED:
        median, p90, first, capped, seconds = documented[one.name]
        assert (one.median_error, one.p90, one.first_right) == (median, p90, first)
        assert (one.capped_right, one.seconds) == (capped.partition(",")[0], seconds)
