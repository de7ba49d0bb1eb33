"""What puts the evaluation into its page."""

from __future__ import annotations

import pytest

from tests.bench.evaluation import BEGIN, END, PAGE, include


def test_a_report_takes_the_place_of_the_one_before() -> None:
    """What is around the marks stays, and pictures are found from the page."""
    page = f"before\n{BEGIN}old\n{END}after\n"

    renewed = include(page, "![a](a.png)\n", "images")

    assert renewed == f"before\n{BEGIN}\n![a](images/a.png)\n\n{END}after\n"
    assert include(renewed, "![a](a.png)\n", "images") == renewed


def test_a_page_without_marks_is_left_alone() -> None:
    """Nothing says where the report goes; the real page has them."""
    with pytest.raises(ValueError, match="the marks of the evaluation are missing"):
        include("no marks", "", "images")
    assert include(PAGE.read_text(), "", "images")
