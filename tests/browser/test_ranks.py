"""The page of a job on many GPUs, in a real browser."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.site import PATIENCE, Site

DIVIDED: dict[str, Any] = {"strategy": "zero1", "world_size": 4}


@pytest.mark.parametrize("width", [1280, 390], ids=["desk", "phone"])
def test_ranks_are_side_by_side(page: Page, site: Site, width: int) -> None:
    """Those that were run, those that are like them, and what is divided; also on a phone."""
    job = site.estimate(gpu="a100-80", distributed=DIVIDED)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"/ui/jobs/{job}")

    card = page.locator("#ranks")
    expect(card.get_by_role("heading", name="Ranks side by side")).to_be_visible(timeout=PATIENCE)
    rows = card.locator("table.ranks tbody tr")
    expect(rows.first).to_contain_text("0")
    expect(rows.last).to_contain_text("not run: taken to be like those above")
    expect(card.locator("table.ranks .badge").first).to_have_text("admit")
    shards = card.locator("table.shards tbody tr")
    expect(shards).to_have_count(3)
    expect(shards.nth(0)).to_contain_text("whole on every GPU")
    expect(shards.nth(2)).to_contain_text("divided over 4 GPUs")
    expect(card).to_contain_text("NCCL takes about")
    overflow = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert page.evaluate(overflow), "the page itself does not scroll sideways"


def test_the_form_divides_a_job(page: Page) -> None:
    """The spec below follows."""
    page.goto("/ui/try")
    page.locator("#strategy").select_option("fsdp2")
    expect(page.locator("#spec")).to_have_value(_having("fsdp2"))
    page.locator("#world_size").fill("16")
    page.locator("#world_size").blur()

    expect(page.locator("#spec")).to_have_value(_having("16"))


def _having(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text))
