"""A real browser, and a page whose every test also checks its manners: see ``Watched``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from memgate_worker.runtimes.runtime import DEFAULT_RUNTIME, read_runtimes
from tests.browser.site import Site, open_browser, serve_site
from tests.parts import find_part

#: what a wrong form or an absent page is answered with: Chromium tells the console of each
_EXPECTED_STATUS = ("403", "404", "422")


class Watched:
    """What a page did that it should not have: errors, and requests that leave the origin."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.errors: list[str] = []
        self.elsewhere: list[str] = []
        #: a test that makes a mistake on purpose says so
        self.allows_refusals = False
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("request", lambda request: self._see(request.url, origin))

    def _hear(self, kind: str, text: str) -> None:
        refused = text.startswith("Failed to load resource") and any(
            status in text for status in _EXPECTED_STATUS
        )
        if kind in ("error", "warning") and not (refused and self.allows_refusals):
            self.errors.append(text)

    def _see(self, url: str, origin: str) -> None:
        if not url.startswith((f"{origin}/", "data:", "blob:")):
            self.elsewhere.append(url)


@pytest.fixture(scope="module")  # not longer: it leaves an event loop running in this thread
def browser() -> Iterator[Browser]:
    """Start Debian's Chromium."""
    if find_part("chromium") is None:
        pytest.skip("there is no chromium: make parts")
    with sync_playwright() as playwright, open_browser(playwright) as started:
        yield started


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Start everything: a Valkey, a worker that runs jobs, the service."""
    if not read_runtimes()[DEFAULT_RUNTIME].is_installed:
        pytest.skip("no runtime: make runtime")
    with serve_site(tmp_path_factory.mktemp("site")) as started:
        yield started


@pytest.fixture
def watch(browser: Browser) -> Iterator[Callable[..., Watched]]:
    """Open pages; when the test is over, none may have shown an error or left its origin."""
    opened: list[Watched] = []

    def open_page(origin: str, *, theme: str = "light") -> Watched:
        context = browser.new_context(
            base_url=origin,
            color_scheme="dark" if theme == "dark" else "light",
            viewport={"width": 1440, "height": 900},
            reduced_motion="reduce",
        )
        opened.append(Watched(context.new_page(), origin))
        return opened[-1]

    yield open_page
    for watched in opened:
        watched.page.context.close()
    assert [watched.errors for watched in opened] == [[] for _ in opened]
    assert [watched.elsewhere for watched in opened] == [[] for _ in opened]


@pytest.fixture
def watched(watch: Callable[..., Watched], site: Site) -> Watched:
    """Open a page of the site where nobody needs a key."""
    return watch(site.url)


@pytest.fixture
def page(watched: Watched) -> Page:
    """Return the page itself."""
    return watched.page


@pytest.fixture(scope="session")
def traces() -> Path:
    """Return where real traces are."""
    return Path(__file__).parents[1] / "data" / "traces"
