"""axe on every page, light and dark: nothing serious."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.conftest import Watched
from tests.browser.site import Site

THEMES = ["light", "dark"]


def check(page: Page) -> None:
    """Have axe look at a page as it is."""
    found = Axe().run(page).response["violations"]
    serious = [
        (fault["id"], fault["impact"], [node["html"] for node in fault["nodes"]][:3])
        for fault in found
        if fault["impact"] in ("serious", "critical", "moderate")
    ]
    assert not serious


@pytest.mark.parametrize("theme", THEMES)
def test_no_page_has_a_serious_fault(watch: Callable[..., Watched], site: Site, theme: str) -> None:
    """Of a job that fits, of one that does not, of one that failed, and all others."""
    fits = site.estimate()
    rejected = site.estimate(batch_size=20_000)
    failed = site.estimate(model={"source": "torchvision", "name": "nosuch"})
    page = watch(site.url, theme=theme).page

    for path in (
        "/",
        "/ui/try",
        "/ui/accuracy",
        "/ui/glossary",
        f"/ui/jobs/{fits}/what-if",
        f"/ui/jobs/{failed}",
    ):
        page.goto(path)
        expect(page.locator("#theme")).to_have_text("Theme: system")
        check(page)
    for job in (fits, rejected):
        page.goto(f"/ui/jobs/{job}")
        expect(page.locator("#timeline")).to_have_attribute("data-drawn", "yes")
        for summary in page.locator("summary").all():
            summary.click()
        check(page)


@pytest.mark.parametrize("theme", THEMES)
def test_mistakes_have_no_serious_fault_either(
    watch: Callable[..., Watched], site: Site, theme: str
) -> None:
    """What is shown when something is wrong."""
    watched = watch(site.url, theme=theme)
    watched.allows_refusals = True
    watched.page.goto("/ui/try")
    watched.page.get_by_label("Job spec").fill("batch_size: none")
    watched.page.get_by_role("button", name="Ask").click()
    expect(watched.page.locator("#mistakes")).to_contain_text("things are wrong")

    check(watched.page)
    for path in (f"/ui/jobs/{'0' * 32}", "/ui/jobs/abc", "/nosuch"):
        watched.page.goto(path)
        expect(watched.page.get_by_role("link", name="To the overview")).to_be_visible()
        check(watched.page)


def test_a_narrow_and_a_huge_screen_show_all_without_scrolling_sideways(
    watch: Callable[..., Watched], site: Site
) -> None:
    """A phone, a small laptop's half, and a wall screen; wide tables scroll by themselves."""
    page = watch(site.url).page
    job = site.estimate()
    long_name = site.estimate(model={"source": "timm", "name": "a_model_" * 16})
    rejected = site.estimate(batch_size=20_000)  # says all that PyTorch would say
    peak = site.ask(f"/jobs/{job}")["result"]["peak_bytes"]
    for share in (0.02, 1.0, 40.0):  # scales of many powers of two: not all of them have room
        outcome = {"job": job, "measured_peak_bytes": round(peak * share)}
        site.ask("/outcomes", outcome)
    page.goto(f"/ui/jobs/{job}")
    states = ("none", "queued", "running")
    waiting = page.locator(", ".join(f'[data-advice][data-state="{state}"]' for state in states))
    expect(page.locator("[data-advice]").first).to_be_visible()
    expect(waiting).to_have_count(0, timeout=240_000)  # answers are wider than no answer
    paths = ["/", "/ui/try", "/ui/accuracy", "/ui/glossary", f"/ui/jobs/{job}/what-if"]
    paths += [f"/ui/jobs/{one}" for one in (job, long_name, rejected)]
    for width in (390, 640, 1280, 2560, 3840):
        page.set_viewport_size({"width": width, "height": 900})
        for path in paths:
            page.goto(path)
            expect(page.locator("#theme")).to_have_text("Theme: system")
            wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wider <= 0, (path, width)
        page.goto("/ui/accuracy")
        expect(page.locator("#scatter canvas")).to_be_visible()
        main = page.locator("main").bounding_box()
        assert main is not None
        assert main["width"] > 0.85 * width, "a wall screen is used"
